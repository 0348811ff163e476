"""B+-trees; used from Cython only."""
