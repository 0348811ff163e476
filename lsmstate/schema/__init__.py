"""Schemas of keys and rows, and how many bytes a batch takes."""
