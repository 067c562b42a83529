"""Tests of spark, the client of Spark Connect."""
