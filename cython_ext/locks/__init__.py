"""Locks, reservations, the claim to a directory (interrupt-safe, hence compiled)."""
