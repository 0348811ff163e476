"""What local joins are built from."""
