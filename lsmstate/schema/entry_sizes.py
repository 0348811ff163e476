"""Bytes that rows and their keys take encoded inside the store; they bound the parts of a write."""

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.schema.arrow_sizes import RowSizes, Sizes

#: Bytes of an entry beside key and row: offsets of both, hash, order, stream number.
ENTRY_BYTES = 32
#: The part of these bytes that lies outside a KeyBatch.
_ROW_PLACE_BYTES = 8


class EntrySizes:
    """Sizes of the entries of one stream, whose types are inspected once. Rows and keys count as in
    Arrow: narrow rows with long keys, or without columns, take more than their bytes."""

    def __init__(self, rows: pa.Schema, keys: pa.Schema) -> None:
        self._rows = RowSizes(rows)
        self._keys = RowSizes(keys)

    def total(self, rows: pa.RecordBatch | None, keys: pa.RecordBatch | KeyBatch) -> int:
        """Return the bytes of all entries; without rows, of the keys alone. Cost: see
        ``RowSizes.total``."""
        row_bytes = 0 if rows is None else self._rows.total(rows)
        if isinstance(keys, KeyBatch):
            return row_bytes + keys.nbytes + _ROW_PLACE_BYTES * len(keys)
        width = self._keys.width
        key_bytes = self._keys.total(keys) if width is None else width * len(keys)
        return row_bytes + key_bytes + ENTRY_BYTES * len(keys)

    def __call__(self, rows: pa.RecordBatch | None, keys: pa.RecordBatch | KeyBatch) -> Sizes:
        """Return the bytes of each entry."""
        key_sizes = keys.sizes if isinstance(keys, KeyBatch) else self._keys(keys)
        row_sizes = 0 if rows is None else self._rows(rows)
        return np.asarray(key_sizes + row_sizes + ENTRY_BYTES, dtype=np.int64)
