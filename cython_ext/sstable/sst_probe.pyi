"""Looking keys up in an SSTable; used from Cython only."""
