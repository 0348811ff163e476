"""Which rows of a stream are equal: those whose values Spark's ``=`` and its grouping hold equal.

Floats are why bytes do not say it: -0.0 is 0.0, and NaNs of any bits are one value, also in structs
and arrays. In a column that holds a map, of which Spark knows no equality, and in dictionaries of
Arrow's bytes count. Rows of the same bytes are *identical*.
"""

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.conditions.key_types import holds_floats
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema


class RowEquality:
    """Equality of rows with this schema."""

    def __init__(self, rows: pa.Schema) -> None:
        #: The columns whose values may be equal and have other bits.
        self.inexact = [n for n, kind in enumerate(rows.types) if holds_floats(kind)]
        self._exact = [n for n in range(len(rows)) if n not in self.inexact]
        self._keys = KeyCodec(null_safe_schema(_some(rows, self.inexact))) if self.inexact else None
        self._rows = RowCodec(_some(rows, self._exact))
        self._all = RowCodec(rows) if self.inexact else self._rows

    def bytes_of(self, rows: pa.RecordBatch) -> pa.Array:
        """Bytes of each row, the same for identical rows."""
        return pa.array(self._all.encode(rows).to_pylist(), pa.large_binary())

    def codes(self, rows: pa.RecordBatch) -> pa.Array:
        """Bytes of each row, the same for equal rows."""
        encoded = self._rows.encode(rows.select(self._exact)).to_pylist()
        if self._keys is not None:
            # No key is the prefix of another, so what follows it cannot be taken for it.
            keys = self._keys.encode(null_safe_keys(rows.select(self.inexact))).to_pylist()
            encoded = [key + row for key, row in zip(keys, encoded, strict=True) if key is not None]
        return pa.array(encoded, pa.large_binary())


def _some(rows: pa.Schema, places: list[int]) -> pa.Schema:
    return pa.schema([rows.field(n) for n in places])
