"""Bytes that each row of an Arrow batch takes; they bound the pieces of probes and joins.

Dictionaries and views count as the values they decode to. Arrow's own sizes say nothing about a
row: a slice has all buffers of its parent, and many rows may share one large value.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.rows.nested import is_any_list_view

Sizes = npt.NDArray[np.int64]

_ZERO = pa.scalar(0, pa.int32())


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the bytes of Arrow data per row: values, offsets, one byte per column and row for
    nulls.

    The result is exact for flat types and lists of them, and of the right order of magnitude for
    all others. Cost: a few vector operations per column of variable width; the values in use of a
    large dictionary are copied.
    """
    return sizes_of(batch.schema)(batch)


class RowSizes:
    """``row_sizes`` of batches with one schema, whose types are inspected once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._is_plain = not any(map(_shares_values, schema.types))
        widths = [_fixed_width(kind) for kind in schema.types]
        self._fixed = sum(width for width in widths if width is not None)
        self._varying = [column for column, width in enumerate(widths) if width is None]
        #: Bytes of each row if all rows have the same size.
        self.width = None if self._varying else self._fixed

    def __call__(self, batch: pa.RecordBatch) -> Sizes:
        """Return the bytes of each row."""
        total = np.full(batch.num_rows, self._fixed, dtype=np.int64)
        for column in self._varying:
            total += _sizes(batch.column(column))
        return total

    def total(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of all rows. Cost: plain types are not read."""
        if self._is_plain:
            return int(batch.nbytes)
        return int(self(batch).sum())


@lru_cache(maxsize=256)
def sizes_of(schema: pa.Schema) -> RowSizes:
    """Return the RowSizes of a schema, which the process caches."""
    return RowSizes(schema)


def same_sizes(size: int, count: int) -> Sizes:
    """Return one size so many times. It takes no memory, and may not be written to."""
    return np.broadcast_to(np.int64(size), count)


def pieces_of(sizes: Sizes, max_bytes: int) -> Iterator[slice]:
    """Split a sequence of sizes into slices of at most ``max_bytes``, or one item, each."""
    if sizes.strides == (0,) and len(sizes):  # one size, as ``same_sizes`` has it
        step = max(1, max_bytes // max(1, int(sizes[0])))
        for start in range(0, len(sizes), step):
            yield slice(start, min(len(sizes), start + step))
        return
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        yield slice(first, last)
        first = last


def least_row_bytes(schema: pa.Schema) -> int:
    """Return the least bytes of a row in Arrow, however few bytes its nulls are encoded in."""
    return sum(int(_sizes(pa.nulls(1, field.type))[0]) for field in schema)


def _shares_values(kind: pa.DataType) -> bool:
    """Test whether arrays of the type hold, at any depth, values that several rows may refer to."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind) or _is_view(kind) or is_any_list_view(kind):
        return True
    return any(_shares_values(kind.field(k).type) for k in range(kind.num_fields))


def _fixed_width(kind: pa.DataType) -> int | None:
    """Return the bytes of each value; None if they vary."""
    if pa.types.is_null(kind):
        return 0
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed_width(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _fixed_width(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        item = _fixed_width(kind.value_type)
        return None if item is None else 1 + kind.list_size * item
    if pa.types.is_fixed_size_binary(kind):
        return 1 + int(kind.byte_width)  # its bits are counted in 32 bits
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return 1 + (int(kind.bit_width) + 7) // 8
    return None


def _sizes(column: pa.Array) -> Sizes:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    count = len(column)
    width = _fixed_width(kind)
    if width is not None:
        return np.full(count, width, dtype=np.int64)
    if _is_text(kind):
        lengths = pc.coalesce(pc.binary_length(column), _ZERO).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, dtype=np.int64) + 9
    if _is_view(kind):
        return _view_sizes(column)
    if pa.types.is_dictionary(kind):
        return _dictionary_sizes(column)
    if pa.types.is_struct(kind):
        children = [_sizes(column.field(k)) for k in range(kind.num_fields)]
        return sum(children, np.ones(count, dtype=np.int64))
    if pa.types.is_fixed_size_list(kind):
        items = _sizes(column.values.slice(column.offset * kind.list_size, count * kind.list_size))
        return np.asarray(items.reshape(count, kind.list_size).sum(axis=1) + 1, dtype=np.int64)
    if is_any_list_view(kind):
        return _list_view_sizes(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _list_sizes(column)
    # Unions and run ends: use the average.
    return np.full(count, 1 + column.nbytes // max(1, count), dtype=np.int64)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _view_sizes(column: pa.Array) -> Sizes:
    """Each view has 16 bytes and begins with its length; Arrow has no kernel that reads it."""
    lengths = np.zeros(len(column), dtype=np.int64)
    if len(column):
        views = np.frombuffer(column.buffers()[1], dtype=np.int32, offset=16 * column.offset)
        lengths += views[: 4 * len(column) : 4]
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0  # Arrow leaves them undefined
    return lengths + 9


def _dictionary_sizes(column: pa.Array) -> Sizes:
    sizes = np.full(len(column), _sizes(pa.nulls(1, column.type.value_type))[0], dtype=np.int64)
    places = column.indices.drop_null().to_numpy()
    values = column.dictionary
    if len(values) == 0:  # all are null, even if a null struct hides that
        return sizes
    # Mostly a slice: values that it does not use are skipped. Arrow cannot take from views.
    if len(values) > len(places) and not _shares_values(values.type):
        used, places = np.unique(places, return_inverse=True)
        values = values.take(pa.array(used))
    sizes[column.indices.is_valid().to_numpy(zero_copy_only=False)] = _sizes(values)[places]
    return sizes


def _list_sizes(column: pa.Array) -> Sizes:
    if len(column) == 0:
        return np.zeros(0, dtype=np.int64)  # it may lack its only offset
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    return _item_sizes(column.values, offsets[:-1], offsets[1:])


def _list_view_sizes(column: pa.Array) -> Sizes:
    starts = column.offsets.to_numpy().astype(np.int64)
    lengths = column.sizes.to_numpy().astype(np.int64)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        starts[is_null] = lengths[is_null] = 0  # Arrow leaves them undefined
    return _item_sizes(column.values, starts, starts + lengths)


def _item_sizes(values: pa.Array, starts: Sizes, ends: Sizes) -> Sizes:
    """Return the bytes of lists from where each begins and ends among the values."""
    if len(starts) == 0:
        return np.zeros(0, dtype=np.int64)
    width = _fixed_width(values.type)
    if width is not None:
        return np.asarray((ends - starts) * width + 9, dtype=np.int64)
    first, last = starts.min(), ends.max()
    before = np.concatenate([[0], np.cumsum(_sizes(values.slice(first, last - first)))])
    return np.asarray(before[ends - first] - before[starts - first] + 9, dtype=np.int64)


def lies_in(rows: pa.RecordBatch, values: npt.NDArray[Any]) -> bool:
    """Whether values are a view of a column, so that they take no memory of their own."""
    start = values.__array_interface__["data"][0]
    buffers = (buffer for column in rows.columns for buffer in column.buffers() if buffer)
    return any(each.address <= start < each.address + each.size for each in buffers)
