"""Subscriptions: journals that Pub/Sub fills. Pullers bring the messages, and one owner of each drops duplicates."""
