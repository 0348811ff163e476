"""Schemas of keys and rows, and sizes of batches."""
