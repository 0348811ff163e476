"""The values that travel to the workers."""
