"""Nested loops: a document is compared with all documents before it, as the paper's NLJ does."""

import numpy as np

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.cython_ext.documents.document_index import matching


def pairs(documents: Documents) -> int:
    """How many documents match one before them. Cost: a comparison for each pair."""
    found = 0
    before = np.arange(len(documents), dtype=np.int64)
    for place in range(1, len(documents)):
        own = np.full(place, place, np.int64)
        found += int(matching(documents, before[:place], documents, own).sum())
    return found
