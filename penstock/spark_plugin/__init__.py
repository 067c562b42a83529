"""Spark's side: partitions that put and get, writes that the driver commits, a data source."""
