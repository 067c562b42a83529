"""Tests of spark_plugin."""
