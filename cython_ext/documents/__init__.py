"""Documents without a schema: JSON text as attribute-value pairs, and which documents match."""
