"""`multiway_join`, and one face per join kind."""
