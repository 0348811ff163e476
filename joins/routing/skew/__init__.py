"""Hot keys: sketch, spread routes, next table."""
