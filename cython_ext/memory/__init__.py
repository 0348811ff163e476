"""Byte counters, slabs, buffer pool."""
