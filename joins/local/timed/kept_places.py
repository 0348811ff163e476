"""KeptPlaces: rows of the second stream of an as-of join in memory, by key and place.

A lookup in the store searches each run and each memtable, and then fetches the row.

Invariant: all rows of the stream that a lookup may still need are kept. Rows that the store has
forgotten may be kept, too. None of them is the nearest one of a row after the watermark.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.placed_rows import Placed, PlacedRows
from lsmstate.joins.local.parts.row_picks import Numbers, Picked
from lsmstate.joins.specs.asof import LEAST, PLACE, AsofSpec
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import MultimapStore, RangeBounds


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
        own, left = spec.streams[spec.right], spec.streams[spec.left]
        #: Columns that key and place tell: of which key column each is a copy, or PLACE.
        self._told = _told(spec)
        told = list(self._told)
        self._rest = [name for name in own.names if name not in told]
        self._told_schema = pa.schema([own.field(name) for name in told])
        rest_schema = pa.schema([own.field(name) for name in self._rest])
        #: Without the columns that are told.
        self.kept = PlacedRows(store, spec.key_schema, rest_schema)
        sides = [side for side in (left, self._told_schema, rest_schema) if len(side)]
        together = [field for side in sides for field in side]
        self._gatherer = Gatherer(sides, pa.schema(together))
        at = {name: len(left) + place for place, name in enumerate([*told, *self._rest])}
        #: By column of a result, which one it is of those that are gathered.
        self._order = [*range(len(left)), *(at[name] for name in own.names)]

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
        if not self.kept.looked_up(own.num_rows, self._stored()):
            return None
        high = np.asarray(bounds.high)
        allowed = np.ones(len(high), np.bool_)
        if not bounds.includes_high:
            allowed = high > LEAST
            high = np.where(allowed, high - 1, high)
        equal = bounds.equal
        assert equal is None or isinstance(equal, pa.RecordBatch)
        asked = None if self.kept.codec is None else self.kept.codec.encode(equal)
        best = np.zeros(len(high), np.int64)
        rows, sources = (np.full(len(high), -1, np.int64) for _ in range(2))
        for number, chunk in enumerate(self.kept.chunks):
            chunk.places.improve(asked, high, best, rows, sources, number)
        allowed &= rows >= 0
        if bounds.low is not None:
            allowed &= best >= np.asarray(bounds.low)
        told = []
        if self._told:
            told = [self._told_rows(equal, best)]
            sizes = sizes + row_sizes(told[0])
        found = []
        for number, chunk in enumerate(self.kept.chunks):
            lefts = np.flatnonzero(allowed & (sources == number))
            if len(lefts):
                picks = rows[lefts]
                both = sizes[lefts] + self.kept.sizes(chunk, picks)
                places = [lefts, *(lefts for _ in told), picks]
                picked = Picked([own, *told, chunk.rows], places, both)
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
        self.kept.written(Placed(rows.select(self._rest), keys, places))

    def forget(self) -> None:
        """Let everything go, until many more lookups were made."""
        self.kept.forget()

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        return self.kept.give_back()

    def close(self) -> None:
        """Release the memory of what is kept."""
        self.kept.close()

    def _stored(self) -> Iterator[Placed]:
        """All rows of the store."""
        pieces = self._store.iterate(self._spec.right, max_bytes=self._piece_bytes)
        for under, rows in pieces:
            *keys, places = under.columns
            yield Placed(rows.select(self._rest), keys, places.to_numpy())

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
