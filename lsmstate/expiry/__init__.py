"""Streams that forget by event time, over any backend."""
