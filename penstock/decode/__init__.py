"""Payloads become columns."""
