"""Tests of rows."""
