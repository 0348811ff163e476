"""Index blocks; used from Cython only."""
