"""Inspect, verify, export, restore, repair: works on a state on disk."""
