"""Code that runs once per row, key or block: Cython without the GIL. It knows no options and no
streams."""
