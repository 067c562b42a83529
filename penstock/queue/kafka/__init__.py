"""Queues of work whose messages are records of Kafka's topics."""
