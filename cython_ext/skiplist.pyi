"""Skip lists; used from Cython only."""
