"""Outer, semi and anti joins by several keys."""
