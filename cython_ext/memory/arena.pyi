"""Slabs of memory; used from Cython only."""
