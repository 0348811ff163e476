"""NullSafeStore: keys compared null-safely, over any backend.

A store leaves out rows whose key holds a null, because a null equals nothing in an equi-join. For
other uses a null is a value like any other (SQL's GROUP BY, ``<=>``). Below this store every key
column is therefore a struct of one nullable field: a struct is never null, and inside one a null
equals a null and comes first in key order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime

import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.stats import StoreStats
from lsmstate.store import (
    Entries,
    KeyBounds,
    KeyValues,
    MultimapStore,
    Mutation,
    Positions,
    Probe,
    StoreReader,
    StreamSchema,
)
from lsmstate.store_base.checks import check_key_types, stream_of
from lsmstate.store_base.key_values import key_batch, key_values
from lsmstate.store_base.reads import StoreReads
from lsmstate.store_base.writes import StoreWrites

_FIELD = "value"


def null_safe_schema(key: pa.Schema) -> pa.Schema:
    """The key schema of the store below."""
    return pa.schema(
        [pa.field(f.name, pa.struct([pa.field(_FIELD, f.type)]), nullable=False) for f in key]
    )


def plain_schema(key: pa.Schema) -> pa.Schema:
    """Inverse of ``null_safe_schema``."""
    return pa.schema([pa.field(f.name, f.type.field(0).type) for f in key])


def null_safe_keys(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Keys as the store below has them. No value is copied."""
    columns = [
        pa.StructArray.from_arrays([column], fields=[pa.field(_FIELD, column.type)])
        for column in keys.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=null_safe_schema(keys.schema))


def null_safe_streams(streams: Sequence[StreamSchema]) -> list[StreamSchema]:
    """The streams to open the store below with."""
    return [replace(stream, key=null_safe_schema(stream.key)) for stream in streams]


class NullSafeReads(StoreReads):
    """Reads of a store below, or of a snapshot of it."""

    def __init__(self, streams: Mapping[str, StreamSchema], below: StoreReader) -> None:
        self._streams = streams
        self._reads = below

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        """See store.StateStore.streams."""
        return self._streams

    def probe(
        self, stream: str, keys: pa.RecordBatch | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """See store.StateStore.probe."""
        return self._reads.probe(stream, self._below(stream, keys), positions)

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
        """See store.StateStore.scan."""
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
    ) -> Iterator[Entries]:
        """See store.MultimapStore.iterate; bounds may hold nulls, which come before all else."""
        found = self._reads.iterate(
            stream,
            low=self._bound(stream, low),
            high=self._bound(stream, high),
            prefix=self._bound(stream, prefix),
            reverse=reverse,
            max_bytes=max_bytes,
        )
        key = stream_of(self._streams, stream).key
        return (Entries(_plain(keys, key), rows) for keys, rows in found)

    def stats(self) -> StoreStats:
        """See store.StateStore.stats."""
        return self._reads.stats()

    def close(self) -> None:
        """See store.StateStore.close."""
        self._reads.close()

    def _below(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> pa.RecordBatch:
        schema = stream_of(self._streams, stream)
        if isinstance(keys, KeyBatch):
            raise InvalidArgumentError(
                f"keys of stream {stream!r} are encoded; this store takes them as a record batch"
            )
        check_key_types(schema, keys)
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

    def append(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """See store.StateStore.append; all rows are stored."""
        return self._store.append(stream, rows, self._below(stream, keys))

    def retract(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch | KeyBatch) -> int:
        """See store.MultimapStore.retract; no row is left out."""
        return self._store.retract(stream, rows, self._below(stream, keys))

    def delete(self, stream: str, keys: pa.RecordBatch | KeyBatch) -> None:
        """See store.StateStore.delete."""
        self._store.delete(stream, self._below(stream, keys))

    def write(self, mutations: Sequence[Mutation]) -> int:
        """See store.MultimapStore.write; all rows are stored, bounds are as in ``iterate``."""
        below = []
        for change in mutations:
            if isinstance(change.keys, KeyBounds):
                bounds = (self._bound(change.stream, values) for values in change.keys)
                below.append(change._replace(keys=KeyBounds(*bounds)))
            else:
                below.append(change._replace(keys=self._below(change.stream, change.keys)))
        return self._store.write(below)

    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """See store.MultimapStore.advance."""
        self._store.advance(stream, watermark)

    def snapshot(self) -> StoreReader:
        """See store.MultimapStore.snapshot."""
        return NullSafeReads(self._streams, self._store.snapshot())

    def commit(self) -> str:
        """See store.StateStore.commit."""
        return self._store.commit()


def _plain(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Inverse of ``null_safe_keys``."""
    return pa.RecordBatch.from_arrays([c.field(0) for c in keys.columns], schema=schema)
