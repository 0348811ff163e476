"""Inner joins of rows that stay."""
