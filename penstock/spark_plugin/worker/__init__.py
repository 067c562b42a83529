"""What runs in Spark's workers, and all that travels to them."""
