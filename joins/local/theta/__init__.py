"""The local join of conditions without an equality."""
