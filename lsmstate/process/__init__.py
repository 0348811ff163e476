"""What all stores of one process share: the memory budget and the worker thread."""
