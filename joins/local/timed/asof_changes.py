"""AsofChangeJoin: results of an as-of join come at once, and go where a nearer row comes.

Rows of both streams lie by key and *place* (see ``specs.asof``). A new row of the second stream is
the nearest one for the rows of the first from its place up to that of the next row of its key. All
of them had one nearest row before: the last one up to its place. So a batch looks up one row before
and one after each of its rows, before it is stored, and then the rows of the first stream between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.parts.bound_rows import BLOCK_ROWS, coalesced, parts_of
from lsmstate.joins.local.parts.changelog import ADDED, REMOVED
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.timed.asof_join import AsofLocalJoin, all_known
from lsmstate.joins.local.timed.event_time_join import watermark_write
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.asof import MOST, PLACE, shifted
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import RangeBounds

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Nearer:
    """Rows of a batch of the second stream, by key and place, of each time the last one."""

    rows: pa.RecordBatch
    equal: pa.RecordBatch | None
    low: Numbers
    """The least place of rows of the first stream that it is the nearest one for."""
    high: Numbers
    """The greatest one."""
    earlier: pa.RecordBatch
    """Rows that were the nearest ones before."""
    at: Numbers
    """Beside each row, which of them; -1: none."""
    places: Numbers
    """Their places."""


class AsofChangeJoin(AsofLocalJoin):
    """The local join of an AsofSpec with ``emit="changes"``. Not thread-safe. The store belongs to
    the caller, who commits and closes it."""

    def process(self, batch: Batch) -> Results:
        """Store a batch, but for late rows, and return what it changes: first what goes, then what
        comes.

        Cost: a lookup for each row of the first stream. For each row of the second one two lookups,
        and the rows of the first stream whose nearest row it is.
        """
        spec, arrived = self._spec, self._arrived(batch)
        keys = arrived.keys
        if batch.stream == spec.left:
            places = pa.array(self._places(arrived.ticks.to_numpy()))
            self._append(spec.left, arrived.rows, [*keys, places])
            found = self._first_results(arrived.rows, keys, places.to_numpy(), arrived.timeless)
            pieces = self._signed(found, ADDED)
        else:
            rows, ticks = arrived.rows, arrived.ticks
            if keys:
                known = all_known(keys)
                rows, ticks = rows.filter(known), ticks.filter(known)
                keys = [each.filter(known) for each in keys]
            nearer = self._nearer(rows, keys, self._places(ticks.to_numpy()))
            self._keep(rows, keys, ticks)
            pieces = self._changed(nearer)
        self._note_late(arrived)
        self._unfinished = Results(pieces, schema=spec.output_schema)
        return self._unfinished

    def advance(self, watermark_us: int) -> Results:
        """Forget what is due by this watermark; no results. A lower one than before changes
        nothing."""
        self._settle("advance()")
        if self.watermark_us is None or watermark_us > self.watermark_us:
            self._store.write([watermark_write(watermark_us)])
            self.watermark_us = self._next_us = watermark_us
            self._expire(watermark_us)
        return Results((), schema=self._spec.output_schema)

    def _first_results(
        self, rows: pa.RecordBatch, keys: list[pa.Array], places: Numbers, timeless: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """New rows of the first stream, each with its nearest row."""
        spec = self._spec
        if spec.how == "left":
            yield from (self._alone(part) for part in parts_of(timeless, self._piece_bytes))
        first = 0
        for part in parts_of(rows, self._piece_bytes):
            here = slice(first, first + part.num_rows)
            first += part.num_rows
            high = places[here]
            low = spec.least_places(high)
            bounds = RangeBounds(
                self._equal_columns([each[here] for each in keys]),
                None if low is None else pa.array(low),
                pa.array(high),
                includes_high=not spec.is_strict,
            )
            yield from self._beside_last(part, bounds)

    def _nearer(self, rows: pa.RecordBatch, keys: list[pa.Array], places: Numbers) -> _Nearer:
        """What new rows of the second stream change, before they are stored."""
        spec = self._spec
        schema = self._store.streams[spec.right].key
        under = pa.RecordBatch.from_arrays([*keys, pa.array(places)], schema=schema)
        encoded = KeyCodec(schema).encode(under)
        _, starts = encoded.distinct()
        order = np.asarray(encoded.order, np.int64)[np.asarray(starts[1:], np.int64) - 1]
        rows, places = rows.take(pa.array(order)), places[order]
        equal = self._equal_columns([each.take(pa.array(order)) for each in keys])
        own = pa.array(places)
        after, has_after = self._found_places(
            RangeBounds(equal, own, None, includes_low=False), is_last=False
        )
        end = np.where(has_after, after, MOST)
        if len(places) > 1:
            is_same = np.ones(len(places) - 1, np.bool_)
            if equal is not None:
                groups = KeyCodec(equal.schema).encode(equal).to_pylist()
                is_same = np.array([a == b for a, b in pairwise(groups)])
            has_after[:-1] |= is_same
            end[:-1] = np.where(is_same, np.minimum(end[:-1], places[1:]), end[:-1])
        high = np.where(has_after & (not spec.is_strict), end - 1, end)
        most = spec.most_places(places)
        if most is not None:
            high = np.minimum(high, most)
        earlier, at, found = self._before(equal, own)
        low = shifted(places, 1) if spec.is_strict else places
        return _Nearer(rows, equal, low, high, earlier, at, found)

    def _before(
        self, equal: pa.RecordBatch | None, places: pa.Array
    ) -> tuple[pa.RecordBatch, Numbers, Numbers]:
        """The last stored row up to each place: all rows, of each place which one, their places."""
        spec = self._spec
        at = np.full(len(places), -1, np.int64)
        found_rows, found_places, count = [], [np.zeros(0, np.int64)], 0
        bounds = RangeBounds(equal, None, places)
        for found in self._store.probe_ranges(
            spec.right, bounds, self._piece_bytes, last=True, with_keys=True
        ):
            assert found.keys is not None
            at[found.ranges] = count + found.first
            found_rows.append(found.rows)
            found_places.append(found.keys.column(PLACE).to_numpy())
            count += found.rows.num_rows
        empty = pa.RecordBatch.from_pylist([], schema=spec.streams[spec.right])
        return (
            pa.concat_batches([empty, *found_rows]),
            at,
            np.concatenate(found_places),
        )

    def _changed(self, nearer: _Nearer) -> Iterator[pa.RecordBatch]:
        yield from self._signed(self._replaced(nearer), REMOVED)
        yield from self._signed(self._replacing(nearer), ADDED)

    def _replaced(self, nearer: _Nearer) -> Iterator[pa.RecordBatch]:
        """The results that rows of the first stream had."""
        spec, sizes = self._spec, row_sizes(nearer.earlier)
        limits = spec.most_places(nearer.places)
        for rows, places, lefts, which in self._between(nearer):
            at = nearer.at[which]
            has_row = at >= 0
            if limits is not None and len(limits):
                has_row &= places[lefts] <= limits[np.maximum(at, 0)]
            both = row_sizes(rows)[lefts[has_row]] + sizes[at[has_row]]
            picked = Picked([rows, nearer.earlier], [lefts[has_row], at[has_row]], both)
            yield from picked.made(self._gatherer, self._piece_bytes)
            if spec.how == "left" and not has_row.all():
                yield self._alone(rows.take(pa.array(lefts[~has_row])))

    def _replacing(self, nearer: _Nearer) -> Iterator[pa.RecordBatch]:
        """The results that they have now."""
        sizes = row_sizes(nearer.rows)
        for rows, _, lefts, which in self._between(nearer):
            both = row_sizes(rows)[lefts] + sizes[which]
            picked = Picked([rows, nearer.rows], [lefts, which], both)
            yield from picked.made(self._gatherer, self._piece_bytes)

    def _between(
        self, nearer: _Nearer
    ) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers, Numbers]]:
        """Rows of the first stream, their places, and pairs of one of them and of the new row that
        is its nearest one now."""
        for begin in range(0, len(nearer.low), BLOCK_ROWS):
            here = slice(begin, begin + BLOCK_ROWS)
            bounds = RangeBounds(
                None if nearer.equal is None else nearer.equal[here],
                pa.array(nearer.low[here]),
                pa.array(nearer.high[here]),
            )
            for found in self._store.probe_ranges(
                self._spec.left, bounds, self._piece_bytes, with_keys=True
            ):
                assert found.keys is not None
                counts = found.stop - found.first
                ends = np.cumsum(counts)
                lefts = np.arange(counts.sum()) + np.repeat(found.first - (ends - counts), counts)
                which = begin + np.repeat(found.ranges, counts)
                yield found.rows, found.keys.column(PLACE).to_numpy(), lefts, which

    def _equal_columns(self, keys: list[pa.Array]) -> pa.RecordBatch | None:
        return pa.RecordBatch.from_arrays(keys, schema=self._spec.key_schema) if keys else None

    def _signed(self, pieces: Iterator[pa.RecordBatch], sign: str) -> Iterator[pa.RecordBatch]:
        for piece in coalesced(pieces, self._piece_bytes):
            columns = [pa.repeat(sign, piece.num_rows), *piece.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)
