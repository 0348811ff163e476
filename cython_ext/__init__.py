"""What runs once per row, key or block: Cython without the GIL. Knows no options and no streams."""
