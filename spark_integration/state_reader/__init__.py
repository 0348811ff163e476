"""Read the state of a query from outside."""
