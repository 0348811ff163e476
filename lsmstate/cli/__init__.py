"""The command `lsmstate`."""
