"""Tests of flight_server."""
