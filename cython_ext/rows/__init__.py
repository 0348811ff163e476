"""Arrow <-> row bytes, bit planes, gather."""
