"""Tiles of rows as columns; used from Cython only."""
