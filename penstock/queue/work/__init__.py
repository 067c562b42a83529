"""Queues of work: messages that workers claim in leases."""
