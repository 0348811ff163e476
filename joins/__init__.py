"""Joins of streams: what to join (spec), which bucket sees a row (routing), what happens inside a
bucket (local). Knows streams and predicates; knows nothing of Spark or of files."""
