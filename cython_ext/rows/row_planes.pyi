"""Transposed rows to Arrow columns; used from Cython only."""
