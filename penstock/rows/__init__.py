"""Arrow in, Arrow out: schemas, slices of batches, filters."""
