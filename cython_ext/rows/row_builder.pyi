"""Growing Arrow columns; used from Cython only."""
