"""Rows that are close to each other: one store layout, several ways to find candidates."""
