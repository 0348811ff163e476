"""What all stores of one process share: the memory budget, the worker thread."""
