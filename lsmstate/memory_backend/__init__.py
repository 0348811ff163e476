"""The store contract on hash tables in memory."""
