"""Reads that all backends and snapshots share: a StoreReads works on a Reader, inside a guard."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.pieces import Pieces
from lsmstate.shown import Shown, ShownTable
from lsmstate.stats import StoreStats, state_shown
from lsmstate.store import (
    BatchLike,
    Entries,
    KeyValues,
    Matches,
    Positions,
    Probe,
    RangeBounds,
    RangeMatches,
    StreamSchema,
)
from lsmstate.store_base.checks import check_piece_bytes, checked_keys, stream_of
from lsmstate.store_base.guard import Access, StoreGuard
from lsmstate.store_base.key_parts import key_parts
from lsmstate.store_base.key_range import KeyRange, key_range
from lsmstate.store_base.key_values import one_key
from lsmstate.store_base.range_bounds import encoded_ranges, refuse_zones
from lsmstate.store_base.range_reads import (
    EndPortion,
    KeyPortion,
    check_one_end,
    end_matches,
    range_counts,
    range_matches,
    settled_ends,
)
from lsmstate.store_base.read_pieces import EntryPieces, row_pieces

#: Rows are fetched in pieces of this size, so only one piece counts against the memory cap.
_PIECE_BYTES = 1 << 20


P = ParamSpec("P")
T = TypeVar("T")


class Reader(Protocol):
    """How a backend or a snapshot reads. Each step runs inside ``access``, which raises once the
    read is no longer valid. Streams and bounds were checked before."""

    def probe(
        self,
        access: Access,
        stream: str,
        keys: pa.RecordBatch | KeyBatch,
        positions: Positions | None,
    ) -> Probe:
        """Look up keys without reading a row."""
        ...

    def scan(self, access: Access, stream: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read all live rows of a stream."""
        ...

    def iterate(
        self, access: Access, stream: str, wanted: KeyRange, max_bytes: int, *, reverse: bool
    ) -> Iterator[Entries]:
        """Read the rows of a key range."""
        ...

    def range_keys(
        self, access: Access, stream: str, ranges: EncodedRanges
    ) -> Iterator[KeyPortion]:
        """Find the keys in ranges, in portions of bounded size."""
        ...

    def range_ends(
        self, access: Access, stream: str, ranges: EncodedRanges, *, is_last: bool
    ) -> Iterator[EndPortion]:
        """Find the last key of each range, or its first one, in portions of bounded size."""
        ...


class StoreReads(Shown, ABC):
    """The reading half of ``MultimapStore``."""

    _guard: StoreGuard
    _reader: Reader

    def _access(self) -> Access:
        """Return the context that each step of a new read enters."""
        return self._guard.until_next_write()

    def calling(self) -> AbstractContextManager[None]:
        """Return the context of a whole call: those of other threads wait until it ends."""
        return self._guard.calling()

    @property
    @abstractmethod
    def streams(self) -> Mapping[str, StreamSchema]:
        """Return the streams by name, in their fixed order."""

    @abstractmethod
    def stats(self) -> StoreStats:
        """Return memory, disk and counters."""

    @abstractmethod
    def close(self) -> None:
        """Release memory and locks."""

    def probe(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys without reading a row."""
        with self._guard.reading():
            found = checked_keys(stream_of(self.streams, stream), keys)
            return self._reader.probe(self._access(), stream, found, positions)

    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Pieces[pa.RecordBatch]:
        """Read all live rows of a stream, grouped by key."""
        check_piece_bytes(max_bytes)
        with self._guard.reading():
            schema = stream_of(self.streams, stream)
            return row_pieces(self._reader.scan(self._access(), stream, max_bytes), schema)

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
        """Read the live rows of a key range in key order."""
        check_piece_bytes(max_bytes)
        with self._guard.reading():
            schema = stream_of(self.streams, stream)
            wanted = key_range(schema, low, high, prefix)
            found = self._reader.iterate(self._access(), stream, wanted, max_bytes, reverse=reverse)
            return EntryPieces(found, schema)

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
        """Read the live rows of many ranges of keys at once."""
        check_one_end(first, last)
        check_piece_bytes(max_bytes)
        with self._guard.reading():
            schema = stream_of(self.streams, stream)
            ranges = encoded_ranges(schema, bounds)
            access = self._access()
            decoder = KeyDecoder(schema.key) if with_keys else None
            if not first and not last:
                portions = self._reader.range_keys(access, stream, ranges)
                return range_matches(portions, ranges, max_bytes, decoder)
            refuse_zones(ranges, "first=True" if first else "last=True")
            ends = self._reader.range_ends(access, stream, ranges, is_last=last)

        def walk(some: EncodedRanges) -> Iterator[KeyPortion]:
            return self._reader.range_keys(access, stream, some)

        def probe(keys: KeyBatch) -> Probe:
            with access():
                return self._reader.probe(access, stream, keys, None)

        settled = settled_ends(ends, ranges, walk, probe, is_last=last)
        return end_matches(settled, max_bytes, decoder, is_last=last)

    def count_ranges(
        self, stream: str, bounds: RangeBounds | EncodedRanges
    ) -> npt.NDArray[np.int64]:
        """Count the live rows of many ranges of keys at once."""
        with self.calling():
            with self._guard.reading():
                ranges = encoded_ranges(stream_of(self.streams, stream), bounds)
                refuse_zones(ranges, "count_ranges")
                portions = self._reader.range_keys(self._access(), stream, ranges)
            return range_counts(portions, ranges)

    def exists(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> npt.NDArray[np.bool_]:
        """Test which keys have live rows."""
        keys = checked_keys(stream_of(self.streams, stream), keys)
        parts = key_parts(keys) if positions is None else iter([keys])
        with self.calling():
            found = [self.probe(stream, part, positions).counts > 0 for part in parts]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def _as_tables(self) -> Iterable[ShownTable]:
        """The streams, and what they take."""
        rows = [
            (stream.name, _listed(stream.key), _listed(stream.rows), str(stream.expiry or ""))
            for stream in self.streams.values()
        ]
        yield ShownTable(type(self).__name__, ("stream", "key", "columns", "expires"), rows)
        yield state_shown(self.stats)

    def get(self, stream: str, key: KeyValues) -> pa.RecordBatch:
        """Return all rows of one key."""
        return self.get_many(stream, one_key(stream_of(self.streams, stream), key)).rows

    def get_many(self, stream: str, keys: BatchLike | KeyBatch) -> Matches:
        """Return the rows of all keys at once."""
        with self.calling():
            probe = self.probe(stream, keys)
            found = list(probe.fetch(np.flatnonzero(probe.counts), _PIECE_BYTES))
        if len(found) == 1:
            return found[0]
        if not found:
            schema = RowCodec(stream_of(self.streams, stream).rows).schema
            return Matches(
                np.empty(0, dtype=np.int64), pa.RecordBatch.from_pylist([], schema=schema)
            )
        return Matches(
            np.concatenate([piece.positions for piece in found]),
            pa.concat_batches([piece.rows for piece in found]),
        )

    def contains(self, stream: str, key: KeyValues) -> bool:
        """Test whether a key has live rows."""
        return bool(self.exists(stream, one_key(stream_of(self.streams, stream), key))[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


S = TypeVar("S", bound=StoreReads)


def in_one_call(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Return the method inside ``calling``: other threads' calls wait until it ends."""

    @wraps(method)
    def call(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with store.calling():
            return method(store, *args, **kwargs)

    return call


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
