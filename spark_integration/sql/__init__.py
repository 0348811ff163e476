"""SQL and DataFrames -> one operator."""
