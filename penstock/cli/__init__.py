"""The command line: a file for each verb, and files for what verbs share."""
