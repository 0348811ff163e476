"""The checkpoint of a query: pinned settings, pointers, starts."""
