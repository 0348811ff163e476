"""Spark types <-> Arrow types, keys as Spark's `=` compares them."""
