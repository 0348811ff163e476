"""Reads of the column families of one open RocksDB database; ``store.py`` describes them."""

import struct
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import CorruptionError
from lsmstate.rocksdb_backend.database import rocks_errors
from lsmstate.rocksdb_backend.records import Chunk, chunks_of, unpack_chunk, unpack_entry
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

#: Most chunks read by one multi-get; fewer if they are large on average.
_CHUNKS_PER_GET = 64
_STREAM = struct.Struct(">H")


class RocksReader:
    """Reads streams; ``counts`` and ``rows`` are rocksdict's column families."""

    def __init__(self, path: str, streams: Mapping[str, StreamSchema]) -> None:
        self._path = path
        self._streams = streams
        self._numbers = {name: number for number, name in enumerate(streams)}
        self._key_codecs = {name: KeyCodec(s.key) for name, s in streams.items()}
        self._row_codecs = {name: RowCodec(s.rows) for name, s in streams.items()}
        self.counts: Any = None
        self.rows: Any = None
        self._iterators: WeakSet[_Held] = WeakSet()
        self.counters = {"appended_rows": 0, "probed_keys": 0, "fetched_rows": 0}

    def encoded(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> KeyBatch:
        """Encode keys of a stream. InvalidArgumentError for other key types."""
        return encoded_keys(self._streams[stream], self._key_codecs[stream], keys)

    def row_bytes(self, stream: str, rows: pa.RecordBatch) -> list[bytes]:
        """Return the encoded rows of a batch."""
        return self._row_codecs[stream].encode(rows).to_pylist()

    def names(self, stream: str, keys: KeyBatch) -> list[bytes]:
        """Return the keys as stored in ``counts``; a key with a null gets an unused name."""
        prefix = _STREAM.pack(self._numbers[stream])
        return [prefix + (key or b"") for key in keys.to_pylist()]

    def entries(self, names: list[bytes]) -> list[bytes | None]:
        """Return the entries of keys in ``counts``."""
        with rocks_errors(self._path):
            return list(self.counts.get(names))

    def probe(
        self,
        access: Access,
        stream: str,
        keys: pa.RecordBatch | KeyBatch,
        positions: Positions | None,
    ) -> "RocksProbe":
        """Look up keys without reading a row."""
        encoded = self.encoded(stream, keys)
        asked = checked_positions(encoded, positions)
        asked = asked[encoded.valid[asked]]
        names = self.names(stream, encoded)
        found = self.entries([names[position] for position in asked.tolist()])
        self.counters["probed_keys"] += len(asked)
        return RocksProbe(self, access, stream, len(encoded), asked, names, found)

    def scan(self, access: Access, stream: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read all live rows of a stream."""
        found = self._between(stream, KeyRange(), reverse=False)
        chunks = (chunk for name, entry in found for chunk in chunks_of(0, name, entry))
        return (piece.rows for piece in self.rows_of(access, stream, chunks, max_bytes))

    def iterate(
        self, access: Access, stream: str, wanted: KeyRange, max_bytes: int, *, reverse: bool
    ) -> Iterator[Entries]:
        """Read the rows of a key range."""
        found = self._between(stream, wanted, reverse=reverse)
        decoder = KeyDecoder(self._streams[stream].key)
        # Keys of the current chunks, by the position that each gets.
        keys: dict[int, bytes] = {}

        def chunks() -> Iterator[Chunk]:
            for position, (name, entry) in enumerate(found):
                keys[position] = name[_STREAM.size :]
                yield from chunks_of(position, name, entry)

        def entries() -> Iterator[Entries]:
            for piece in self.rows_of(access, stream, chunks(), max_bytes):
                positions = piece.positions.tolist()
                yield Entries(decoder.decode([keys[at] for at in positions]), piece.rows)
                for done in [at for at in keys if at < positions[-1]]:
                    del keys[done]

        return entries()

    def range_keys(
        self, access: Access, stream: str, ranges: EncodedRanges
    ) -> Iterator[KeyPortion]:
        """Find the keys in ranges with one iterator, which seeks to each segment."""
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
        names: list[bytes] = []
        entries: list[bytes | None] = []
        for name, entry in self._in_segments(stream, ranges):
            names.append(name)
            entries.append(entry)
            if len(names) == PORTION_KEYS:
                yield self._portion(access, stream, names, entries, is_last=False)
                names, entries = [], []
        yield self._portion(access, stream, names, entries, is_last=True)

    def _portion(
        self,
        access: Access,
        stream: str,
        names: list[bytes],
        entries: list[bytes | None],
        *,
        is_last: bool,
    ) -> KeyPortion:
        asked = np.arange(len(names), dtype=np.int64)
        probe = RocksProbe(self, access, stream, len(names), asked, names, entries)
        keys = KeyBatch.from_bytes([name[_STREAM.size :] for name in names])
        return KeyPortion(keys, probe, is_last)

    def _in_segments(self, stream: str, ranges: EncodedRanges) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, entry) of the keys in the segments of the ranges, in key order."""
        held = _Held(self.counts.iter())
        self._iterators.add(held)
        for place in range(ranges.segment_count):
            low, high = KeyRange(*ranges.segment(place)).in_stream(self._numbers[stream])
            with rocks_errors(self._path):
                held.at.seek(low)
            while held.at.valid():
                name = held.at.key()
                if high is not None and name >= high:
                    break
                yield name, held.at.value()
                with rocks_errors(self._path):
                    held.at.next()
            with rocks_errors(self._path):
                held.at.status()

    def stats(self) -> StoreStats:
        """Return the counters of what is read here; the store whose cache it shares counts the
        memory."""
        with rocks_errors(self._path):
            families = (self.counts, self.rows)
            disk = sum(f.property_int_value("rocksdb.total-sst-files-size") or 0 for f in families)
        return StoreStats(
            memory={},
            peak_memory_bytes=0,
            disk_bytes=disk,
            spilled_bytes=disk,
            counters=dict(self.counters),
            probes=ProbeStats(self.counters["probed_keys"]),
        )

    def rows_of(
        self, access: Access, stream: str, chunks: Iterator[Chunk], max_bytes: int
    ) -> Iterator[Matches]:
        """Read and decode the chunks' rows, in pieces of at most ``max_bytes`` or one row."""
        return Stepwise(access, self._pieces(stream, chunks, max_bytes))

    def _pieces(self, stream: str, chunks: Iterator[Chunk], max_bytes: int) -> Iterator[Matches]:
        owners: list[int] = []
        rows: list[bytes] = []
        size = 0
        for position, chunk in self._chunks(chunks, max_bytes):
            for row in unpack_chunk(chunk, self._path):
                if rows and size + len(row) > max_bytes:
                    yield self._matches(stream, owners, rows)
                    owners, rows, size = [], [], 0
                owners.append(position)
                rows.append(row)
                size += len(row)
        if rows:
            yield self._matches(stream, owners, rows)

    def _matches(self, stream: str, owners: list[int], rows: list[bytes]) -> Matches:
        self.counters["fetched_rows"] += len(rows)
        return Matches(np.array(owners, dtype=np.int64), self._row_codecs[stream].decode(rows))

    def chunk(self, name: bytes) -> list[bytes]:
        """Return the encoded rows of one chunk."""
        ((_, chunk),) = self._get_chunks([(0, name)])
        return unpack_chunk(chunk, self._path)

    def _chunks(self, chunks: Iterator[Chunk], max_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Read chunks by multi-gets of about ``max_bytes``."""
        waiting: list[tuple[int, bytes]] = []
        size = 0
        for position, name, average in chunks:
            if waiting and (len(waiting) == _CHUNKS_PER_GET or size + average > max_bytes):
                yield from self._get_chunks(waiting)
                waiting, size = [], 0
            waiting.append((position, name))
            size += average
        if waiting:
            yield from self._get_chunks(waiting)

    def _get_chunks(self, wanted: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        with rocks_errors(self._path):
            found = self.rows.get([name for _, name in wanted])
        chunks = []
        for (position, name), chunk in zip(wanted, found, strict=True):
            if chunk is None:
                raise CorruptionError(f"rows of key {name.hex()} are missing", self._path, 0)
            chunks.append((position, chunk))
        return chunks

    def _between(
        self, stream: str, wanted: KeyRange, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, entry) of the keys of a range, in key order or reverse key order."""
        low, high = wanted.in_stream(self._numbers[stream])
        # Nothing else refers to rocksdict's iterator, which keeps the database open.
        held = _Held(self.counts.iter())
        self._iterators.add(held)
        with rocks_errors(self._path):
            if not reverse:
                held.at.seek(low)
            elif high is None:
                held.at.seek_to_last()
            else:
                held.at.seek_for_prev(high)
                if held.at.valid() and held.at.key() == high:
                    held.at.prev()
        while held.at.valid():
            name = held.at.key()
            if name < low or (high is not None and name >= high):
                return
            yield name, held.at.value()
            with rocks_errors(self._path):
                if reverse:
                    held.at.prev()
                else:
                    held.at.next()
        with rocks_errors(self._path):
            # An iterator that met an error looks as if it had reached the end.
            held.at.status()

    def close_iterators(self) -> None:
        """Close all iterators, so that the database can be closed; no read goes on."""
        for held in list(self._iterators):
            held.at = None


class _Held:
    """An iterator of rocksdict, until the store is closed."""

    def __init__(self, at: Any) -> None:
        self.at = at


class RocksProbe:
    """The entries of the keys at ``asked``, without rows; a ``store.Probe``."""

    def __init__(
        self,
        reader: "RocksReader",
        access: Access,
        stream: str,
        keys: int,
        asked: Positions,
        names: list[bytes],
        found: list[bytes | None],
    ) -> None:
        self._reader = reader
        self._access = access
        self._stream = stream
        self._names = names
        self._found = dict(zip(asked.tolist(), found, strict=True))
        self.counts = np.zeros(keys, dtype=np.int64)
        self.row_bytes = np.zeros(keys, dtype=np.int64)
        for position, entry in self._found.items():
            if entry is not None:
                found_entry = unpack_entry(entry)
                self.counts[position] = found_entry.rows
                self.row_bytes[position] = found_entry.row_bytes

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        check_piece_bytes(max_bytes)
        with self._access():
            pass  # an outdated probe is refused at once
        wanted = checked_positions(self.counts, positions).tolist()
        chunks = (
            chunk
            for position in wanted
            if (entry := self._found.get(position)) is not None
            for chunk in chunks_of(position, self._names[position], entry)
        )
        return self._reader.rows_of(self._access, self._stream, chunks, max_bytes)
