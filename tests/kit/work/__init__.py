"""Queues of work for tests: one in memory, one on a ledger, and what every LeaseQueue promises."""
