"""Bytes, atomics, compression and checksums, file access."""
