"""The text of ON, parsed once, as values."""
