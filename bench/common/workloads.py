"""Named workloads for stores: TPC-DS-like rows of about 100 bytes that compress to about half.

Deterministic: the same arguments give the same batches. Keys are drawn uniformly (5 rows per key)
or by Zipf's law with exponent 1; integers of 8 bytes or strings of 24. Only every eighth value is a
key, so that a key that misses lies between two that are stored: key ranges alone cannot tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.store import StreamSchema

#: Distance of two neighbouring keys.
GAP = 8

ROWS = pa.schema(
    [pa.field(f"key_{i}", pa.int64()) for i in range(6)]
    + [pa.field(f"amount_{i}", pa.decimal128(7, 2)) for i in range(8)]
    + [pa.field("flag", pa.string()), pa.field("day", pa.int32())]
)


@dataclass(frozen=True)
class Workload:
    """``rows`` rows in batches of ``batch_rows``."""

    rows: int
    key: str = "int"
    skew: str = "uniform"
    batch_rows: int = 10_000

    @property
    def key_schema(self) -> pa.Schema:
        return pa.schema([("key", pa.int64() if self.key == "int" else pa.string())])

    def stream_schema(self, name: str) -> StreamSchema:
        return StreamSchema(name, self.key_schema, ROWS)

    @property
    def key_bytes(self) -> int:
        """Of an encoded key: all keys of a workload have one length."""
        return 8 if self.key == "int" else 26

    @property
    def keys(self) -> int:
        return max(1, self.rows // 5)

    def key_numbers(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.skew == "uniform":
            return rng.integers(0, self.keys, count)
        # Zipf(1) over a bounded range by inversion: the rank is exponential in a uniform draw.
        return (self.keys ** rng.random(count)).astype(np.int64) - 1

    def key_batch(self, numbers: np.ndarray) -> pa.RecordBatch:
        return self._keys(GAP * numbers)

    def _keys(self, values: np.ndarray) -> pa.RecordBatch:
        if self.key == "int":
            column = pa.array(values, pa.int64())
        else:
            column = pa.array([f"customer-{value:015d}" for value in values.tolist()])
        return pa.RecordBatch.from_arrays([column], schema=self.key_schema)

    def values_of(self, keys: pa.RecordBatch) -> np.ndarray:
        """The numbers in keys: ``GAP`` times the first column of the rows stored under them."""
        column = keys.column(0)
        if self.key == "string":
            column = pc.utf8_slice_codeunits(column, len("customer-")).cast(pa.int64())
        return column.to_numpy()

    def batches(self, seed: int = 7) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """(rows, keys), batch after batch."""
        for rows, numbers in self.numbered_batches(seed):
            yield rows, self.key_batch(numbers)

    def numbered_batches(self, seed: int = 7) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """(rows, numbers of their keys), batch after batch."""
        rng = np.random.default_rng(seed)
        for start in range(0, self.rows, self.batch_rows):
            numbers = self.key_numbers(rng, min(self.batch_rows, self.rows - start))
            yield _rows(rng, numbers), numbers

    def hits(self, batches: int) -> list[pa.RecordBatch]:
        """Sorted batches of distinct keys drawn as the rows' keys were."""
        rng = np.random.default_rng(11)
        return [
            self.key_batch(np.unique(self.key_numbers(rng, self.batch_rows)))
            for _ in range(batches)
        ]

    def misses(self, batches: int) -> list[pa.RecordBatch]:
        """Sorted batches of keys none of which is stored, spread evenly between those that are."""
        rng = np.random.default_rng(13)
        return [
            self._keys(GAP * np.unique(rng.integers(0, self.keys, self.batch_rows)) + GAP // 2)
            for _ in range(batches)
        ]


def digest(rows: pa.RecordBatch) -> int:
    """A hash of every value of the rows of ``ROWS``, whatever the order of the rows."""
    count = rows.num_rows
    mixed = np.zeros(count, dtype=np.uint64)
    for column in rows.columns:
        mixed = (mixed ^ _words(column, count)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum(dtype=np.uint64))


def _words(column: pa.Array, count: int) -> np.ndarray:
    """A number for each value: integers, short decimals by their low word, one-letter strings."""
    assert column.null_count == 0
    if pa.types.is_decimal(column.type):
        words = np.frombuffer(column.buffers()[1], dtype=np.uint64)[::2]
        return words[column.offset : column.offset + count]
    if pa.types.is_string(column.type):
        offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
        offsets = offsets[column.offset : column.offset + count + 1]
        assert offsets[-1] - offsets[0] == count, "the flags have one letter each"
        letters = np.frombuffer(column.buffers()[2], dtype=np.uint8)
        return letters[offsets[0] : offsets[-1]].astype(np.uint64)
    return column.to_numpy().astype(np.int64).view(np.uint64)


def _rows(rng: np.random.Generator, numbers: np.ndarray) -> pa.RecordBatch:
    count = len(numbers)
    columns: list[pa.Array] = [pa.array(numbers)]
    columns += [pa.array(rng.integers(0, 1 << (8 + 3 * i), count)) for i in range(5)]
    for i in range(8):
        cents = rng.integers(0, 10 ** (3 + i % 4), count)
        columns.append(_money(cents))
    columns.append(pa.array(np.array(["A", "B", "N", "R"])[rng.integers(0, 4, count)]))
    columns.append(pa.array((2_450_000 + rng.integers(0, 2000, count)).astype(np.int32)))
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def _money(cents: np.ndarray) -> pa.Array:
    """Cents as decimal(7, 2), without a Python object per value."""
    words = np.zeros((len(cents), 2), dtype=np.int64)
    words[:, 0] = cents
    return pa.Array.from_buffers(
        pa.decimal128(7, 2), len(cents), [None, pa.py_buffer(words.tobytes())]
    )
