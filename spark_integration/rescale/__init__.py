"""Another number of buckets for a stopped query."""
