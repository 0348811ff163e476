"""Distances of vectors and of sets, pair by pair and block by block."""
