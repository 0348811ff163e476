"""Parts that every backend is built from: guard, reads, writes, snapshot, checks."""
