"""Tests of Pub/Sub's way in, and of what stands in for Pub/Sub."""
