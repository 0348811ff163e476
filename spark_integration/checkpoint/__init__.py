"""What a query's checkpoint holds: pinned settings, pointers, starts."""
