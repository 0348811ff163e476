"""Tables of routes: one for each micro-batch, kept beside the state."""
