"""Reads of a MemoryStore's tables, or of a snapshot."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.memory_backend.table import MemoryTable
from lsmstate.schema.arrow_sizes import pieces_of
from lsmstate.stats import ProbeStats, StoreStats
from lsmstate.store import Entries, Matches, Positions, Probe, StreamSchema
from lsmstate.store_base.checks import check_piece_bytes, checked_positions, encoded_keys
from lsmstate.store_base.guard import Access, Stepwise
from lsmstate.store_base.key_range import KeyRange
from lsmstate.store_base.range_reads import (
    PORTION_KEYS,
    EndPortion,
    KeyPortion,
    walked_ends,
)

Tables = dict[str, MemoryTable]


class MemoryReader:
    """A ``store_base.reads.Reader``; ``tables`` returns what to read, at each read."""

    def __init__(
        self,
        streams: Mapping[str, StreamSchema],
        codecs: Mapping[str, KeyCodec],
        tables: Callable[[], Tables],
    ) -> None:
        self._streams = streams
        self._codecs = codecs
        self._tables = tables
        self.counters = {"appended_rows": 0, "probed_keys": 0, "fetched_rows": 0}

    def probe(
        self,
        access: Access,
        stream: str,
        keys: pa.RecordBatch | KeyBatch,
        positions: Positions | None,
    ) -> "MemoryProbe":
        """Look up keys without reading a row."""
        encoded = encoded_keys(self._streams[stream], self._codecs[stream], keys)
        asked = checked_positions(encoded, positions)
        self.counters["probed_keys"] += len(asked)
        return MemoryProbe(access, self._tables()[stream], encoded, asked, self.counters)

    def scan(self, access: Access, stream: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read all live rows of a stream."""
        pieces = self._tables()[stream].scan(KeyRange(), max_bytes)
        return (rows for _, rows in Stepwise(access, pieces))

    def iterate(
        self, access: Access, stream: str, wanted: KeyRange, max_bytes: int, *, reverse: bool
    ) -> Iterator[Entries]:
        """Read the rows of a key range."""
        decoder = KeyDecoder(self._streams[stream].key)
        pieces = self._tables()[stream].scan(wanted, max_bytes, reverse=reverse)
        return (Entries(decoder.decode(keys), rows) for keys, rows in Stepwise(access, pieces))

    def range_keys(
        self, access: Access, stream: str, ranges: EncodedRanges
    ) -> Iterator[KeyPortion]:
        """Find the keys in ranges: slices of all keys, sorted."""
        return Stepwise(access, self._portions(access, stream, ranges))

    def range_ends(
        self, access: Access, stream: str, ranges: EncodedRanges, *, is_last: bool
    ) -> Iterator[EndPortion]:
        """Find the last or first key of each range by a walk over all keys in them."""

        def walk(some: EncodedRanges) -> Iterator[KeyPortion]:
            return self._portions(access, stream, some)

        def probe(keys: KeyBatch) -> Probe:
            return self.probe(access, stream, keys, None)

        return Stepwise(access, walked_ends(walk, ranges, probe, is_last=is_last))

    def _portions(self, access: Access, stream: str, ranges: EncodedRanges) -> Iterator[KeyPortion]:
        table = self._tables()[stream]
        known = table.sorted_keys()
        found: list[bytes | None] = []
        for place in range(ranges.segment_count):
            low, high = ranges.segment(place)
            start = bisect_left(known, low)
            end = len(known) if high is None else bisect_left(known, high, start)
            while start < end:
                part = known[start : min(end, start + PORTION_KEYS - len(found))]
                found += part
                start += len(part)
                if len(found) == PORTION_KEYS:
                    yield self._portion(access, table, found, is_last=False)
                    found = []
        yield self._portion(access, table, found, is_last=True)

    def _portion(
        self, access: Access, table: MemoryTable, found: list[bytes | None], *, is_last: bool
    ) -> KeyPortion:
        keys = KeyBatch.from_bytes(found)
        asked = np.arange(len(found), dtype=np.int64)
        probe = MemoryProbe(access, table, keys, asked, self.counters)
        return KeyPortion(keys, probe, is_last)

    def stats(self) -> StoreStats:
        """Return the counters of what is read here."""
        tables = self._tables().values()
        return StoreStats(
            memory={
                "rows": sum(table.row_bytes for table in tables),
                "index": sum(table.index_bytes for table in tables),
            },
            peak_memory_bytes=0,
            disk_bytes=0,
            spilled_bytes=0,
            counters=dict(self.counters),
            probes=ProbeStats(self.counters["probed_keys"]),
        )


class MemoryProbe:
    """The result of a lookup in a table: row numbers, no rows."""

    def __init__(
        self,
        access: Access,
        table: MemoryTable,
        keys: KeyBatch,
        asked: Positions,
        counters: dict[str, int],
    ) -> None:
        self._access = access
        self._table: MemoryTable | None = table
        self._counters = counters
        self.counts = np.zeros(len(keys), dtype=np.int64)
        self.row_bytes = np.zeros(len(keys), dtype=np.int64)
        encoded = keys.to_pylist()
        counts, self._numbers = table.find([encoded[position] for position in asked.tolist()])
        before = np.concatenate([[0], np.cumsum(table.sizes(self._numbers))])
        ends = np.cumsum(counts)
        self.counts[asked] = counts
        self.row_bytes[asked] = before[ends] - before[ends - counts]
        self._starts = np.zeros(len(keys), dtype=np.int64)
        self._starts[asked] = ends - counts
        access.hold(self)

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of some of the keys, in pieces."""
        check_piece_bytes(max_bytes)
        with self._access():
            pieces = self._pieces(checked_positions(self.counts, positions), max_bytes)
        return Stepwise(self._access, pieces)

    def let_go(self) -> None:
        """Release the rows."""
        self._table = None

    def _pieces(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        found = positions[self.counts[positions] > 0]
        if len(found) == 0:
            return
        counts = self.counts[found]
        owners = np.repeat(found, counts)
        shift = self._starts[found] - (np.cumsum(counts) - counts)
        numbers = self._numbers[np.repeat(shift, counts) + np.arange(len(owners))]
        assert self._table is not None, "the store is open"
        for piece in pieces_of(self._table.sizes(numbers), max_bytes):
            self._counters["fetched_rows"] += len(owners[piece])
            yield Matches(owners[piece], self._table.rows(numbers[piece]))
