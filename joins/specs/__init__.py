"""WHAT is joined: one immutable, checked value per join kind."""
