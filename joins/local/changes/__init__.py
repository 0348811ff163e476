"""Changelogs in and out, by one key and by several."""
