"""Natural joins of documents: what is stored of a window, and how partners are found."""
