"""Key blocks; used from Cython only."""
