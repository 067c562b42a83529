"""Pub/Sub for the tests: Google's emulator, a fake of ours, and a client of both through raw stubs."""
