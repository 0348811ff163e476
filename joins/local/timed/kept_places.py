"""KeptPlaces: rows of the second stream of an as-of join in memory, by key and place.

A lookup in the store searches each run and each memtable, and then fetches the row. So rows are
kept in memory once they were looked up often, within a share of the memory cap. Rows that are
stored later are added. Without room for all of them none are kept, and the store is asked again.

Invariant: all rows of the stream that a lookup may still need are kept. Rows that the store has
forgotten may be kept, too. None of them is the nearest one of a row after the watermark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.keys.key_places import KeyPlaces
from lsmstate.cython_ext.memory.budget import Holding
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.joins.specs.asof import LEAST, PLACE, AsofSpec
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.process.memory_budget import process_memory
from lsmstate.schema.arrow_sizes import row_sizes, sizes_of
from lsmstate.store import MultimapStore, RangeBounds

#: Rows are kept when so many lookups were made for each stored row. A lookup in the store takes
#: some eight times as long as keeping a row.
LOOKUPS: Final = 1 / 8
#: After a refusal, so many times as many lookups are to be made first.
PATIENCE: Final = 8
#: Adjacent chunks are merged unless the older one has so many times the rows.
APART: Final = 2


@dataclass(frozen=True)
class Chunk:
    """Rows by key and place."""

    places: KeyPlaces
    rows: pa.RecordBatch
    """Their columns, without those that key and place tell."""
    sizes: Numbers | None
    """Bytes of each row, unless all rows have the same."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        own = 0 if self.sizes is None else self.sizes.nbytes
        return self.places.nbytes + int(self.rows.nbytes) + own


class Nearest(NamedTuple):
    """Rows of the first stream, and what the results are made of that have the nearest ones."""

    lefts: Numbers
    picked: Picked


class KeptPlaces:
    """The rows of ``spec.right`` in ``store``."""

    def __init__(self, spec: AsofSpec, store: MultimapStore, piece_bytes: int) -> None:
        self._spec = spec
        self._store = store
        self._piece_bytes = piece_bytes
        self._memory: KeptMemory | None = None
        self._chunks: list[Chunk] = []
        self._lookups = 0.0
        self._codec = KeyCodec(spec.key_schema) if len(spec.key_schema) else None
        own, left = spec.streams[spec.right], spec.streams[spec.left]
        #: Columns that key and place tell: of which key column each is a copy, or PLACE.
        self._told = _told(spec)
        told = list(self._told)
        self._rest = [name for name in own.names if name not in told]
        self._told_schema = pa.schema([own.field(name) for name in told])
        self._rest_schema = pa.schema([own.field(name) for name in self._rest])
        self._row_sizes = sizes_of(self._rest_schema)
        self._rows_gatherer = Gatherer([self._rest_schema], self._rest_schema)
        sides = [left, self._told_schema, self._rest_schema]
        together = [field for side in sides for field in side]
        self._gatherer = Gatherer(sides, pa.schema(together))
        at = {name: len(left) + place for place, name in enumerate([*told, *self._rest])}
        #: By column of a result, which one it is of those that are gathered.
        self._order = [*range(len(left)), *(at[name] for name in own.names)]

    @property
    def chunks(self) -> Sequence[Chunk]:
        """What is kept."""
        return self._chunks

    def nearest(
        self, own: pa.RecordBatch, sizes: Numbers, bounds: RangeBounds
    ) -> list[Nearest] | None:
        """The last kept row in the range of each row of the first stream; None if none are kept.

        Args:
            own: Rows of the first stream.
            sizes: Their bytes.
            bounds: A range of each, with an upper bound.

        Cost:
            A walk over the keys and a binary search a row, in each of a few chunks. All rows of the
            store are read once it pays.
        """
        self._lookups += own.num_rows
        if self._memory is None:
            if self._lookups < LOOKUPS * self._stored_rows() or not self._load():
                return None
        elif self._memory.is_short:
            self.forget()
            return None
        high = np.asarray(bounds.high)
        allowed = np.ones(len(high), np.bool_)
        if not bounds.includes_high:
            allowed = high > LEAST
            high = np.where(allowed, high - 1, high)
        equal = bounds.equal
        assert equal is None or isinstance(equal, pa.RecordBatch)
        asked = None if self._codec is None else self._codec.encode(equal)
        best = np.zeros(len(high), np.int64)
        rows, sources = (np.full(len(high), -1, np.int64) for _ in range(2))
        for number, chunk in enumerate(self._chunks):
            chunk.places.improve(asked, high, best, rows, sources, number)
        allowed &= rows >= 0
        if bounds.low is not None:
            allowed &= best >= np.asarray(bounds.low)
        told = self._told_rows(equal, best)
        told_sizes = row_sizes(told)
        found = []
        for number, chunk in enumerate(self._chunks):
            lefts = np.flatnonzero(allowed & (sources == number))
            if len(lefts):
                picks = rows[lefts]
                both = (sizes + told_sizes)[lefts] + self._rest_sizes(chunk, picks)
                picked = Picked([own, told, chunk.rows], [lefts, lefts, picks], both)
                found.append(Nearest(lefts, picked))
        return found

    def made(self, picked: Picked) -> Iterator[pa.RecordBatch]:
        """Results in pieces."""
        schema = self._spec.rows_schema
        for piece in picked.made(self._gatherer, self._piece_bytes):
            columns = [piece.column(at) for at in self._order]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def written(self, rows: pa.RecordBatch, keys: Sequence[pa.Array], places: Numbers) -> None:
        """Add rows that were stored, with their keys and places."""
        if self._memory is None or not rows.num_rows:
            return
        chunk = self._chunk(rows, keys, places)
        if not self._memory.try_grow(chunk.nbytes):
            self.forget()
            return
        self._chunks.append(chunk)
        self._merge(APART)

    def forget(self) -> None:
        """Let everything go, until many more lookups were made."""
        if self._memory is not None:
            self._memory, self._chunks = None, []
            self._lookups = -PATIENCE * LOOKUPS * self._stored_rows()

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        was_there = self._memory is not None
        self.forget()
        return was_there

    def _stored_rows(self) -> float:
        """Of all streams together."""
        return self._store.stats().counters.get("rows", np.inf)

    def _load(self) -> bool:
        """Keep all rows of the store; return False if there is no room."""
        self._memory = KeptMemory()
        pieces = self._store.iterate(self._spec.right, max_bytes=self._piece_bytes)
        for keys, rows in pieces:
            *equal, places = keys.columns
            chunk = self._chunk(rows, equal, places.to_numpy())
            if not self._memory.try_grow(chunk.nbytes):
                self.forget()
                return False
            self._chunks.append(chunk)
            self._merge(APART)
        self._merge(None)
        return True

    def _chunk(self, rows: pa.RecordBatch, keys: Sequence[pa.Array], places: Numbers) -> Chunk:
        """Rows in any order. Those with a null among their keys are left out."""
        if self._codec is None:
            order = np.argsort(places, kind="stable")
            found = KeyPlaces(None, np.array([0, len(order)]), places[order])
        else:
            equal = pa.RecordBatch.from_arrays(list(keys), schema=self._spec.key_schema)
            encoded = self._codec.encode(equal)
            distinct, starts = encoded.distinct()
            order = encoded.order.astype(np.int64)
            ordered = places[order]
            descends = ordered[1:] < ordered[:-1]
            descends[starts[1:-1] - 1] = False
            if descends.any():
                groups = np.repeat(np.arange(len(distinct)), np.diff(starts))
                order = order[np.lexsort((ordered, groups))]
            found = KeyPlaces(distinct, starts, places[order])
        rest = self._rows_gatherer.sources([rows.select(self._rest)]).gather([order])
        return self._sized(found, rest)

    def _sized(self, places: KeyPlaces, rows: pa.RecordBatch) -> Chunk:
        has_width = self._row_sizes.width is not None
        return Chunk(places, rows, None if has_width else self._row_sizes(rows))

    def _rest_sizes(self, chunk: Chunk, picks: Numbers) -> Numbers | int:
        if chunk.sizes is not None:
            return chunk.sizes[picks]
        assert self._row_sizes.width is not None
        return self._row_sizes.width

    def _merge(self, apart: int | None) -> None:
        """Merge the last chunks while the older one has less than ``apart`` times the rows of the
        newer; None: all of them. Without room for that they stay as they are."""
        while len(self._chunks) > 1:
            older, newer = self._chunks[-2:]
            if apart is not None and len(older.places) >= apart * len(newer.places):
                return
            merged = self._merged(older, newer)
            if merged is None:
                return
            self._chunks[-2:] = [merged]

    def _merged(self, older: Chunk, newer: Chunk) -> Chunk | None:
        assert self._memory is not None
        before = older.nbytes + newer.nbytes
        # For a moment there are the rows of both, what they become, and where each goes.
        follows = older.places.precedes(newer.places)
        with Holding(process_memory().budget, "probe") as room:
            if not room.try_grow(before if follows else 2 * before):
                return None
            try:
                rows = pa.concat_batches([older.rows, newer.rows])
            except pa.ArrowInvalid:  # too many values for a dictionary
                return None
            places, order = older.places.merged(newer.places)
            if order is not None:
                rows = self._rows_gatherer.sources([rows]).gather([order])
            merged = self._sized(places, rows)
        if merged.nbytes > before and not self._memory.try_grow(merged.nbytes - before):
            return None
        if merged.nbytes < before:
            self._memory.shrink(before - merged.nbytes)
        return merged

    def _told_rows(self, equal: pa.RecordBatch | None, places: Numbers) -> pa.RecordBatch:
        """The columns that key and place tell."""
        ticks = pa.array(~places if self._spec.looks_ahead else places)
        columns = []
        for field in self._told_schema:
            source = self._told[field.name]
            if source == PLACE:
                columns.append(ticks.view(field.type))
            else:
                assert equal is not None
                columns.append(equal.column(source))
        return pa.RecordBatch.from_arrays(columns, schema=self._told_schema)


def _told(spec: AsofSpec) -> dict[str, str]:
    """Columns of the second stream whose values key and place tell. One column at least is left, so
    that rows can be counted."""
    schema = spec.streams[spec.right]
    found: dict[str, str] = {}
    time = spec.times[spec.right]
    kind = schema.field(time).type
    if kind == pa.int64() or (pa.types.is_timestamp(kind) and kind == spec.tick_type):
        found[time] = PLACE
    for name, field in zip(spec.keys[spec.right], spec.key_schema, strict=True):
        if schema.field(name).type == field.type and _is_plain(field.type):
            found[name] = field.name
    if len(found) == len(schema):
        found.popitem()
    return found


def _is_plain(kind: pa.DataType) -> bool:
    """Whether equal keys of a type are the same values: 0.0 and -0.0 are not."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )
