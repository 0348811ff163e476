"""Joins on Spark Structured Streaming: what knows Spark, and nothing else does."""
