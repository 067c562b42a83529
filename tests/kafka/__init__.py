"""Queues on Kafka, with a real broker."""
