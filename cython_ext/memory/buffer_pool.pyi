"""Buffers that batches left for the next ones; used from Cython only."""
