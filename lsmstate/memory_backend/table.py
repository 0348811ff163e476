"""Rows of one stream in memory: a hash table from key to row numbers over Arrow batches."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.schema.arrow_sizes import Sizes, pieces_of, row_sizes
from lsmstate.store import Positions
from lsmstate.store_base.key_range import KeyRange

#: Keys and rows of a piece of a scan.
Piece = tuple[list[bytes], pa.RecordBatch]

#: Bytes of a key beside its own: the objects of key and ranges, and its place in the table.
KEY_BYTES = 240
RANGE_BYTES = 16

#: Bytes of a row beside its data: its size, in an array that doubles.
_SIZE_BYTES = 16

#: Live rows that are copied at once when a table is rebuilt.
REBUILT_BYTES = 4 << 20

#: Smaller Arrow batches are joined, this many at a time, so that a gather touches few.
_SMALL_BATCH_BYTES = 1 << 20
_SMALL_BATCHES = 64


class MemoryTable:
    """A multimap from key to ranges of row numbers. The row numbers of a key ascend in arrival
    order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._codec = RowCodec(schema)
        #: Schema of its rows, with plain types. Batches of a dictionary type may together have more
        #: values than its indices can count.
        self.schema: pa.Schema = self._codec.schema
        self._index: dict[bytes, array[int]] = {}
        self._batches: list[pa.RecordBatch] = []
        self._sizes: Sizes = np.empty(64, dtype=np.int64)
        self._starts: list[int] = []
        self._end = 0
        self._dead = 0
        #: Pending retractions: key -> encoded rows.
        self._pending: dict[bytes, list[bytes]] = {}
        #: The keys in order, made when they are asked for; None: keys have come or gone since.
        self._sorted: list[bytes] | None = None
        self.row_bytes = 0
        self.index_bytes = 0

    def plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to the table's types. InvalidArgumentError as in the backend ``lsm``."""
        rows = self._codec.plain(rows)
        if not rows.num_columns:  # a batch made from no columns would have no rows
            return rows
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.schema)

    @staticmethod
    def cost(keys: Sequence[bytes], rows: pa.RecordBatch) -> int:
        """Return an upper bound of the bytes that ``append`` of these will add."""
        buffers: int = rows.get_total_buffer_size() + _SIZE_BYTES * rows.num_rows
        return buffers + sum(map(len, keys)) + (KEY_BYTES + RANGE_BYTES) * len(keys)

    def append(self, keys: Sequence[bytes], counts: Positions, rows: pa.RecordBatch) -> None:
        """Add rows that are grouped by key: ``counts[g]`` rows of ``keys[g]``, then the next."""
        first = self._end
        index = self._index
        for key, count in zip(keys, counts.tolist(), strict=True):
            ranges = index.get(key)
            if ranges is None:
                ranges = index[key] = array("q")
                self._sorted = None
                self.index_bytes += KEY_BYTES + len(key)
            ranges.extend((first, count))
            first += count
        assert first == self._end + rows.num_rows, "the counts must add up to the rows"
        self.index_bytes += RANGE_BYTES * len(keys)
        self._keep(rows)
        for key in keys if self._pending else ():
            if key in self._pending:
                self._take(key, self._pop_pending(key))

    def retract(self, keys: Sequence[bytes], counts: Positions, rows: pa.RecordBatch) -> None:
        """Take back the oldest row that equals each of these, which are grouped by key; keep the
        others pending. Cost: that of the keys' rows."""
        encoded = self._codec.encode(rows).to_pylist()
        first = 0
        for key, count in zip(keys, counts.tolist(), strict=True):
            self._take(key, encoded[first : first + count])
            first += count

    def _take(self, key: bytes, wanted: list[bytes]) -> None:
        """Take rows of a key; absent ones stay pending."""
        numbers = _expanded(_pairs(self._index.get(key, array("q")))).tolist()
        encoded = self._codec.encode(self.rows(np.array(numbers, dtype=np.int64))).to_pylist()
        missing = []
        for row in wanted:
            if row in encoded:
                place = encoded.index(row)
                del encoded[place], numbers[place]
            else:
                missing.append(row)
        if len(missing) < len(wanted):
            pending = self._pop_pending(key)
            self.delete([key])
            self._dead -= len(numbers)
            if numbers:
                self._sorted = None
                self._index[key] = array("q", [n for number in numbers for n in (number, 1)])
                self.index_bytes += KEY_BYTES + len(key) + RANGE_BYTES * len(numbers)
            missing = pending + missing
        if missing:
            self._pending.setdefault(key, []).extend(missing)
            self.index_bytes += KEY_BYTES + sum(map(len, missing))

    def _pop_pending(self, key: bytes) -> list[bytes]:
        pending = self._pending.pop(key, [])
        self.index_bytes -= KEY_BYTES + sum(map(len, pending)) if pending else 0
        return pending

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove the keys. Their rows keep their space until the table is ``rebuilt``."""
        for key in keys:
            self._pop_pending(key)
            ranges = self._index.pop(key, None)
            if ranges is not None:
                self._sorted = None
                self._dead += sum(ranges[1::2])
                self.index_bytes -= KEY_BYTES + len(key) + RANGE_BYTES * (len(ranges) // 2)

    def delete_range(self, low: bytes | None, high: bytes | None) -> None:
        """Remove the keys from ``low`` on and below ``high``. Cost: every key is visited."""
        first = low or b""
        known = self._index.keys() | self._pending.keys()
        self.delete([key for key in known if first <= key and (high is None or key < high)])

    def copy(self) -> "MemoryTable":
        """Return a table that shares the rows and has its own index."""
        table = MemoryTable(self.schema)
        table._index = {key: ranges[:] for key, ranges in self._index.items()}
        table._batches, table._starts = self._batches[:], self._starts[:]
        table._sizes = self._sizes  # only written beyond the copy's end
        table._end, table._dead = self._end, self._dead
        table.row_bytes, table.index_bytes = self.row_bytes, self.index_bytes
        return table

    def bytes_beside(self, other: "MemoryTable") -> int:
        """Bytes that this table holds and the other one does not."""
        shared = {id(batch) for batch in other._batches}
        own = (batch for batch in self._batches if id(batch) not in shared)
        rows: int = sum(batch.get_total_buffer_size() for batch in own)
        return self.index_bytes + rows

    @property
    def is_mostly_dead(self) -> bool:
        """Whether deleted rows outnumber the live ones, so that it should be rebuilt."""
        return self._dead > self._end - self._dead

    def rebuilt(self) -> "MemoryTable":
        """Return a new table of the live rows only. Memory: that of the new table, and a piece."""
        table = MemoryTable(self.schema)
        for keys, counts, rows in self.groups(REBUILT_BYTES):
            table.append(keys, counts, rows)
        for key, rows in self._pending.items():
            table._take(key, rows)
        return table

    def find(self, keys: Iterable[bytes | None]) -> tuple[Positions, Positions]:
        """Return the number of live rows per key, and the numbers of all these rows in the order of
        the keys, in arrival order per key. Cost: one lookup per key, then vector operations."""
        index = self._index
        found = [index.get(key) if key is not None else None for key in keys]
        lengths = np.array([len(ranges) // 2 if ranges else 0 for ranges in found], dtype=np.int64)
        joined = b"".join([ranges.tobytes() for ranges in found if ranges])
        pairs = np.frombuffer(joined, dtype=np.int64).reshape(-1, 2)
        before = np.concatenate([[0], np.cumsum(pairs[:, 1])])
        ends = np.cumsum(lengths)
        return before[ends] - before[ends - lengths], _expanded(pairs)

    def sorted_keys(self) -> list[bytes]:
        """Return the keys in order. Cost: one sort after each change of the keys."""
        if self._sorted is None:
            self._sorted = sorted(self._index)
        return self._sorted

    def sizes(self, numbers: Positions) -> Sizes:
        """Return the bytes of each of the rows."""
        return self._sizes[numbers]

    def rows(self, numbers: Positions) -> pa.RecordBatch:
        """Return the rows in the given order. Cost: one gather per batch they lie in."""
        if len(numbers) == 0:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        batch_of = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(batch_of, kind="stable")
        bounds = np.flatnonzero(np.diff(batch_of[order])) + 1
        parts = []
        for members in np.split(order, bounds):
            k = batch_of[members[0]]
            parts.append(self._batches[k].take(pa.array(numbers[members] - self._starts[k])))
        if len(parts) == 1:
            return parts[0]
        inverse = np.empty(len(order), dtype=np.int64)
        inverse[order] = np.arange(len(order))
        return pa.concat_batches(parts).take(pa.array(inverse))

    def scan(self, wanted: KeyRange, max_bytes: int, *, reverse: bool = False) -> Iterator[Piece]:
        """Yield the live rows of a range with their keys, in key order or reverse key order, in
        pieces of about ``max_bytes``. Cost: all keys are visited, those of the range are sorted."""
        low, high = wanted
        found = [key for key in self._index if key >= low and (high is None or key < high)]
        keys: list[bytes] = []
        waiting: list[Positions] = []
        size = 0
        for key in sorted(found, reverse=reverse):
            numbers = _expanded(_pairs(self._index[key]))
            for piece in pieces_of(self.sizes(numbers), max_bytes):
                part = numbers[piece]
                part_size = int(self.sizes(part).sum())
                if waiting and size + part_size > max_bytes:
                    yield keys, self.rows(np.concatenate(waiting))
                    keys, waiting, size = [], [], 0
                keys += [key] * len(part)
                waiting.append(part)
                size += part_size
        if waiting:
            yield keys, self.rows(np.concatenate(waiting))

    def groups(self, max_bytes: int) -> Iterator[tuple[list[bytes], Positions, pa.RecordBatch]]:
        """Yield all live rows, in the form that ``append`` takes, in pieces of
        about ``max_bytes``."""
        for keys, rows in self.scan(KeyRange(), max_bytes):
            found = [(key, len(list(same))) for key, same in groupby(keys)]
            yield [key for key, _ in found], np.array([count for _, count in found]), rows

    def pending(self) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        """Yield the pending retractions of each key."""
        for key, encoded in self._pending.items():
            yield key, self._codec.decode(encoded)

    def _keep(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        self._batches.append(rows)
        end = self._end + rows.num_rows
        if end > len(self._sizes):
            self._sizes = np.resize(self._sizes, 2 * end)
        self._sizes[self._end : end] = row_sizes(rows)
        self._starts.append(self._end)
        self._end = end
        self.row_bytes += rows.get_total_buffer_size() + _SIZE_BYTES * rows.num_rows
        last = self._batches[-_SMALL_BATCHES:]
        if len(last) == _SMALL_BATCHES and all(b.nbytes < _SMALL_BATCH_BYTES for b in last):
            self._join_last()

    def _join_last(self) -> None:
        last = self._batches[-_SMALL_BATCHES:]
        joined = pa.concat_batches(last)
        self.row_bytes += joined.get_total_buffer_size()
        self.row_bytes -= sum(batch.get_total_buffer_size() for batch in last)
        self._batches[-_SMALL_BATCHES:] = [joined]
        self._starts[-_SMALL_BATCHES + 1 :] = []


def _pairs(ranges: "array[int]") -> Positions:
    """Return a key's ranges as (first, count) pairs; a view that must not outlive
    the next append."""
    return np.frombuffer(ranges, dtype=np.int64).reshape(-1, 2)


def _expanded(ranges: Positions) -> Positions:
    """Convert (first, count) pairs to the numbers they stand for."""
    firsts, counts = ranges[:, 0], ranges[:, 1]
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)
