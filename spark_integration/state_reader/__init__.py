"""A query's state from outside."""
