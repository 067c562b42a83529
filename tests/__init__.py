"""The tests: one file per room or promise, fixtures in fix_*.py by subject."""
