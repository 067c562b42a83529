"""Topics: journals of rows with offsets, filled by clients."""
