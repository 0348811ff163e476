"""B+-tree memtable."""
