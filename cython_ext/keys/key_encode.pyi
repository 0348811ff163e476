"""Columns as key bytes; used from Cython only."""
