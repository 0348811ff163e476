"""Skew while a query runs: hot keys, and tables of routes on disk."""
