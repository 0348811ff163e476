"""Hot keys while a query runs; route tables on disk."""
