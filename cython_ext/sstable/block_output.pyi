"""Blocks on their way into a file; used from Cython only."""
