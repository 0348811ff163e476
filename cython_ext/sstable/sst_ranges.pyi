"""Walking an SSTable over ranges of keys; used from Cython only."""
