"""The Arrow Flight server: one short file per verb."""
