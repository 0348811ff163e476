"""The contract on hash tables."""
