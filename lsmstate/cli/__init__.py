"""The command line ``lsmstate``."""
