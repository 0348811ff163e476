"""Blocked Bloom filter; used from Cython only."""
