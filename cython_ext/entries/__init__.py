"""The iterator contract and key ranges."""
