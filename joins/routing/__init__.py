"""Routers: which buckets see a row."""
