"""Aggregates of the results of a join, computed without the results."""
