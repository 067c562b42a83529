"""Tests of decode."""
