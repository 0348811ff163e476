"""Arrow <-> ordered key bytes."""
