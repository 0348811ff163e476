"""Expressions over tiles of columns."""
