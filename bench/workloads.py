"""Named workloads for stores: TPC-DS-like rows of about 100 bytes that compress to about half.

Deterministic: the same name gives the same batches. Keys are drawn uniformly (5 rows per key) or
by Zipf's law with exponent 1; integers of 8 bytes or strings of 24.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lsmstate.store import StreamSchema

ROWS = pa.schema(
    [pa.field(f"key_{i}", pa.int64()) for i in range(6)]
    + [pa.field(f"amount_{i}", pa.decimal128(7, 2)) for i in range(8)]
    + [pa.field("flag", pa.string()), pa.field("day", pa.int32())]
)


@dataclass(frozen=True)
class Workload:
    """``rows`` rows in batches of ``batch_rows``."""

    name: str
    rows: int
    key: str = "int"
    skew: str = "uniform"
    batch_rows: int = 10_000

    @property
    def schema(self) -> StreamSchema:
        kind = pa.int64() if self.key == "int" else pa.string()
        return StreamSchema("rows", pa.schema([("key", kind)]), ROWS)

    @property
    def keys(self) -> int:
        return max(1, self.rows // 5)

    def key_numbers(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.skew == "uniform":
            return rng.integers(0, self.keys, count)
        # Zipf(1) over a bounded range by inversion: the rank is exponential in a uniform draw.
        return (self.keys ** rng.random(count)).astype(np.int64) - 1

    def key_batch(self, numbers: np.ndarray) -> pa.RecordBatch:
        if self.key == "int":
            column = pa.array(numbers, pa.int64())
        else:
            column = pa.array([f"customer-{n:015d}" for n in numbers.tolist()])
        return pa.RecordBatch.from_arrays([column], schema=self.schema.key)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """(rows, keys), batch after batch."""
        rng = np.random.default_rng(7)
        for start in range(0, self.rows, self.batch_rows):
            count = min(self.batch_rows, self.rows - start)
            numbers = self.key_numbers(rng, count)
            yield _rows(rng, numbers), self.key_batch(numbers)

    def hits(self, batches: int) -> list[pa.RecordBatch]:
        """Sorted batches of distinct keys drawn as the rows' keys were."""
        rng = np.random.default_rng(11)
        return [
            self.key_batch(np.unique(self.key_numbers(rng, self.batch_rows)))
            for _ in range(batches)
        ]

    def misses(self, batches: int) -> list[pa.RecordBatch]:
        """Sorted batches of keys that lie between those that are stored, or beyond."""
        rng = np.random.default_rng(13)
        return [
            self.key_batch(np.unique(rng.integers(self.keys, 8 * self.keys, self.batch_rows)))
            for _ in range(batches)
        ]


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
