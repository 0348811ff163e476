"""Sealed blocks; used from Cython only."""
