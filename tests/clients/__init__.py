"""Clients of others: programs in Go and Java, and the drivers of ADBC."""
