"""Filters: SQL's words for the rows that a reader wants, parsed and evaluated at the server."""
