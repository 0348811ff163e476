"""Ends of ranges of keys in an SSTable; used from Cython only."""
