"""Tests of queues of work."""
