"""NullSafeStore: a wrapper of any backend in which nulls in keys are equal.

- A store leaves out rows whose key holds a null, because in an equi-join a null equals nothing.
- For other uses a null is a value like any other (GROUP BY and ``<=>`` of SQL).
- The store below therefore has a struct of one nullable field for every key column. A struct is
  never null. Inside it a null equals a null and comes first in key order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import date, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.pieces import Pieces
from lsmstate.stats import StoreStats
from lsmstate.store import (
    BatchLike,
    Entries,
    KeyBounds,
    KeyNames,
    KeyValues,
    MultimapStore,
    Mutation,
    Positions,
    Probe,
    RangeBounds,
    RangeMatches,
    StoreReader,
    StreamSchema,
)
from lsmstate.store_base.checks import checked_entries, checked_keys, stream_of
from lsmstate.store_base.key_values import key_batch, key_values
from lsmstate.store_base.range_bounds import CheckedBounds
from lsmstate.store_base.read_pieces import EntryPieces
from lsmstate.store_base.reads import StoreReads
from lsmstate.store_base.writes import StoreWrites

_FIELD = "value"


def null_safe_schema(key: pa.Schema) -> pa.Schema:
    """Return the key schema of the store below."""
    return pa.schema(
        [pa.field(f.name, pa.struct([pa.field(_FIELD, f.type)]), nullable=False) for f in key]
    )


def plain_schema(key: pa.Schema) -> pa.Schema:
    """Invert ``null_safe_schema``."""
    return pa.schema([pa.field(f.name, f.type.field(0).type) for f in key])


def null_safe_keys(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Convert keys for the store below. No value is copied."""
    columns = [
        pa.StructArray.from_arrays([column], fields=[pa.field(_FIELD, column.type)])
        for column in keys.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=null_safe_schema(keys.schema))


def null_safe_streams(streams: Sequence[StreamSchema]) -> list[StreamSchema]:
    """Return the streams with which the store below is opened."""
    return [replace(stream, key=null_safe_schema(stream.key)) for stream in streams]


class NullSafeReads(StoreReads):
    """Reads of the store below, or of a snapshot of it."""

    def __init__(self, streams: Mapping[str, StreamSchema], below: StoreReader) -> None:
        self._streams = streams
        self._reads = below

    def calling(self) -> AbstractContextManager[None]:
        """Return the context of a whole call of the store below."""
        return self._reads.calling() if isinstance(self._reads, StoreReads) else nullcontext()

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """Return the streams by name, with their plain keys."""
        return self._streams

    def probe(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys without reading a row; nulls are equal."""
        return self._reads.probe(stream, self._below(stream, keys), positions)

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Pieces[pa.RecordBatch]:
        """Read all live rows of a stream."""
        return self._reads.scan(stream, max_bytes)

    def iterate(
        self,
        stream: str,
        *,
        low: KeyValues | None = None,
        high: KeyValues | None = None,
        prefix: KeyValues | None = None,
        reverse: bool = False,
        max_bytes: int = 1 << 20,
    ) -> Pieces[Entries]:
        """Read a key range; bounds may hold nulls, which come first."""
        found = self._reads.iterate(
            stream,
            low=self._bound(stream, low),
            high=self._bound(stream, high),
            prefix=self._bound(stream, prefix),
            reverse=reverse,
            max_bytes=max_bytes,
        )
        schema = stream_of(self._streams, stream)
        entries = (Entries(_plain(keys, schema.key), rows) for keys, rows in found)
        return EntryPieces(entries, schema)

    def probe_ranges(
        self,
        stream: str,
        bounds: RangeBounds | EncodedRanges,
        max_bytes: int = 1 << 20,
        *,
        first: bool = False,
        last: bool = False,
        with_keys: bool = False,
    ) -> Iterator[RangeMatches]:
        """Read many ranges; a null in ``equal`` equals a null, and no range of values holds one."""
        found = self._reads.probe_ranges(
            stream,
            self._bounds(stream, bounds),
            max_bytes,
            first=first,
            last=last,
            with_keys=with_keys,
        )
        if not with_keys:
            return found
        key = stream_of(self._streams, stream).key
        return (
            piece if piece.keys is None else piece._replace(keys=_plain(piece.keys, key))
            for piece in found
        )

    def count_ranges(
        self, stream: str, bounds: RangeBounds | EncodedRanges
    ) -> npt.NDArray[np.int64]:
        """Count the rows of many ranges."""
        return self._reads.count_ranges(stream, self._bounds(stream, bounds))

    def _bounds(self, stream: str, bounds: RangeBounds | EncodedRanges) -> RangeBounds:
        if isinstance(bounds, EncodedRanges):
            raise InvalidArgumentError(
                f"bounds of stream {stream!r} are encoded; this store takes them as RangeBounds"
            )
        given = CheckedBounds(stream_of(self._streams, stream), bounds)
        low, high = (None if side is None else _wrapped(side) for side in (given.low, given.high))
        includes_low = bounds.includes_low
        if low is None and high is not None:  # nulls come first: the range begins behind them
            low = _wrapped(pa.nulls(given.n, high.type.field(0).type), is_null=False)
            includes_low = False
        return replace(
            bounds,
            equal=None if given.equal is None else null_safe_keys(given.equal),
            low=low,
            high=high,
            includes_low=includes_low,
        )

    def stats(self) -> StoreStats:
        """Return the counters of the store below."""
        return self._reads.stats()

    def close(self) -> None:
        """Close the store below."""
        self._reads.close()

    def _below(self, stream: str, given: BatchLike | KeyBatch) -> pa.RecordBatch:
        keys = checked_keys(stream_of(self._streams, stream), given)
        if isinstance(keys, KeyBatch):
            raise InvalidArgumentError(
                f"keys of stream {stream!r} are encoded; this store takes them as a record batch"
            )
        return null_safe_keys(keys)

    def _bound(self, stream: str, values: KeyValues | None) -> KeyValues | None:
        schema = stream_of(self._streams, stream)
        if values is None:
            return None
        given = key_values(schema, "bound", values)
        return [{_FIELD: column[0].as_py()} for column in key_batch(schema, given).columns]


class NullSafeStore(NullSafeReads, StoreWrites):
    """A store over ``below``, which was opened with ``null_safe_streams(streams)``."""

    def __init__(self, streams: Sequence[StreamSchema], below: MultimapStore) -> None:
        super().__init__({stream.name: stream for stream in streams}, below)
        self._store = below

    def append(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Store rows; none is left out."""
        rows, keys = checked_entries(stream_of(self._streams, stream), rows, keys, key)
        return self._store.append(stream, rows, self._below(stream, keys))

    def retract(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Take rows back; none is left out."""
        rows, keys = checked_entries(stream_of(self._streams, stream), rows, keys, key)
        return self._store.retract(stream, rows, self._below(stream, keys))

    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        """Remove all rows of the keys."""
        keys = checked_keys(stream_of(self._streams, stream), keys, key)
        self._store.delete(stream, self._below(stream, keys))

    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes atomically. No row is left out, and bounds may hold nulls."""
        return self._store.write(self._mutations_below(mutations))

    def write_all(self, parts: Iterable[Sequence[Mutation]]) -> int:
        """Make several writes, or none. No row is left out, and bounds may hold nulls."""
        return self._store.write_all([self._mutations_below(part) for part in parts])

    def _mutations_below(self, mutations: Sequence[Mutation]) -> list[Mutation]:
        below: list[Mutation] = []
        for change in mutations:
            if isinstance(change.keys, KeyBounds):
                bounds = (self._bound(change.stream, values) for values in change.keys)
                below.append(change._replace(keys=KeyBounds(*bounds)))
            else:
                below.append(change._replace(keys=self._below(change.stream, change.keys)))
        return below

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Advance the watermark of a stream with an expiry."""
        self._store.advance(stream, watermark)

    def snapshot(self) -> StoreReader:
        """Return a null-safe snapshot."""
        return NullSafeReads(self._streams, self._store.snapshot())

    def commit(self) -> str:
        """Make all writes durable and return the commit pointer."""
        return self._store.commit()


def _plain(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Invert ``null_safe_keys``."""
    return pa.RecordBatch.from_arrays([c.field(0) for c in keys.columns], schema=schema)


def _wrapped(column: pa.Array, *, is_null: bool = True) -> pa.Array:
    """Convert bounds for the store below. ``is_null``: a null stays a null, which makes a range
    empty; else it is one among the values of keys."""
    return pa.StructArray.from_arrays(
        [column],
        fields=[pa.field(_FIELD, column.type)],
        mask=column.is_null() if is_null and column.null_count else None,
    )
