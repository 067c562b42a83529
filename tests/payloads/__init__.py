"""Payloads by key: the contract of every store, and what a server adds."""
