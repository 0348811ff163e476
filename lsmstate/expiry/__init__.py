"""Streams that expire by event time, over any backend."""
