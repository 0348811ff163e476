"""Tools for a state on disk: inspect, verify, export, restore, repair."""
