"""One log record as bytes."""
