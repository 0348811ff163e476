"""A place in one SSTable that moves forward; used from Cython only."""
