"""The client: one file for each verb, and what they share."""
