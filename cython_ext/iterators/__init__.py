"""Merge, backward, scan, key lookup, row fetch, retraction merge."""
