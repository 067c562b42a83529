"""Filters: SQL's words for the rows to read, parsed and evaluated at the server."""
