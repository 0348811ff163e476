"""Routings of documents without a schema."""
