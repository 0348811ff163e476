"""Blocks, filters, cache, reader, writer, probe, check, salvage."""
