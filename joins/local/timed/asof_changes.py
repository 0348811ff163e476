"""AsofChangeJoin: results of an as-of join come at once, and go where a nearer row comes.

Rows of both streams lie by key and *place* (see ``specs.asof``). A new row of the second stream is
the nearest one for the rows of the first from its place up to that of the next row of its key. All
of them had one nearest row before: the last one up to its place. So a batch looks up one row before
and one after each of its rows, before it is stored, and then the rows of the first stream between.

In both directions it is the nearest one from the middle between it and the previous row of its key
to the middle between it and the next one. What was nearest before is the last stored row up to its
place, or the first one after it.
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
from lsmstate.joins.specs.asof import LEAST, MOST, PLACE, shifted
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import RangeBounds

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Stored:
    """At most one stored row beside each new row of the second stream."""

    rows: pa.RecordBatch
    at: Numbers
    """Beside each new row, which of them; -1: none."""
    places: Numbers
    """Beside each new row, the place of the stored one."""


@dataclass(frozen=True)
class _Nearer:
    """Rows of a batch of the second stream, by key and place, of each time the last one."""

    rows: pa.RecordBatch
    equal: pa.RecordBatch | None
    low: Numbers
    """The least place of rows of the first stream that it is the nearest one for."""
    high: Numbers
    """The greatest one."""
    before: _Stored
    """The last row up to its place."""
    after: _Stored | None
    """The first row after its place, in a join that looks both ways."""


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
            equal, high = self._equal_columns([each[here] for each in keys]), places[here]
            if spec.looks_both_ways:
                yield from self._beside_last(part, self._nearest(equal, high))
                continue
            low = spec.least_places(high)
            bounds = RangeBounds(
                equal,
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
        before, later = self._last(RangeBounds(equal, None, own)), None
        if spec.looks_both_ways:
            at = pa.array(after, mask=~has_after)
            later = self._last(RangeBounds(equal, at, at))
        is_same = _is_same(equal, len(places))
        end = np.where(has_after, after, MOST)
        end[:-1] = np.where(is_same, np.minimum(end[:-1], places[1:]), end[:-1])
        has_after[:-1] |= is_same
        if spec.looks_both_ways:
            least = pa.array(np.full(len(places), LEAST))
            start, has_before = self._found_places(
                RangeBounds(equal, least, own, includes_high=False), is_last=True
            )
            start = np.where(has_before, start, LEAST)
            start[1:] = np.where(is_same, np.maximum(start[1:], places[:-1]), start[1:])
            has_before[1:] |= is_same
            start, end = np.where(has_before, start, places), np.where(has_after, end, places)
            low, high = self._between_middles(places, start, end)
        else:
            low = shifted(places, 1) if spec.is_strict else places
            high = np.where(has_after & (not spec.is_strict), end - 1, end)
            most = spec.most_places(places)
            high = high if most is None else np.minimum(high, most)
        return _Nearer(rows, equal, low, high, before, later)

    def _between_middles(
        self, places: Numbers, start: Numbers, end: Numbers
    ) -> tuple[Numbers, Numbers]:
        """In both directions, the least and the greatest place of the rows that rows are nearest
        to. Beside their places are those of the previous and of the next row of the key, or their
        own ones where there is none."""
        spec = self._spec
        low, end_least = map(spec.least_places, (places, end))
        high, start_most = map(spec.most_places, (places, start))
        assert low is not None, "looking both ways needs a tolerance"
        assert end_least is not None
        assert high is not None
        assert start_most is not None
        # In the middle two rows are as near, and the earlier one counts, as far as it reaches.
        start_last = np.minimum(_middle(start, places), start_most)
        own_last = np.maximum(_middle(places, end), shifted(end_least, -1))
        low = np.where(start < places, np.maximum(low, start_last + 1), low)
        high = np.where(places < end, np.minimum(high, own_last), high)
        return low, high

    def _last(self, bounds: RangeBounds) -> _Stored:
        """The last stored row of the second stream in each range."""
        spec, count = self._spec, 0
        assert bounds.high is not None
        at = np.full(len(bounds.high), -1, np.int64)
        places = np.zeros(len(at), np.int64)
        pieces = []
        for found in self._store.probe_ranges(
            spec.right, bounds, self._piece_bytes, last=True, with_keys=True
        ):
            assert found.keys is not None
            at[found.ranges] = count + found.first
            places[found.ranges] = found.keys.column(PLACE).to_numpy()[found.first]
            pieces.append(found.rows)
            count += found.rows.num_rows
        empty = pa.RecordBatch.from_pylist([], schema=spec.streams[spec.right])
        return _Stored(pa.concat_batches([empty, *pieces]), at, places)

    def _changed(self, nearer: _Nearer) -> Iterator[pa.RecordBatch]:
        yield from self._signed(self._replaced(nearer), REMOVED)
        yield from self._signed(self._replacing(nearer), ADDED)

    def _replaced(self, nearer: _Nearer) -> Iterator[pa.RecordBatch]:
        """The results that rows of the first stream had."""
        spec, stored = self._spec, nearer.before.rows
        if nearer.after is not None:
            stored = pa.concat_batches([stored, nearer.after.rows])
        sizes = row_sizes(stored)
        for rows, places, lefts, which in self._between(nearer):
            at = self._had(nearer, places[lefts], which)
            has_row = at >= 0
            both = row_sizes(rows)[lefts[has_row]] + sizes[at[has_row]]
            picked = Picked([rows, stored], [lefts[has_row], at[has_row]], both)
            yield from picked.made(self._gatherer, self._piece_bytes)
            if spec.how == "left" and not has_row.all():
                yield self._alone(rows.take(pa.array(lefts[~has_row])))

    def _had(self, nearer: _Nearer, places: Numbers, which: Numbers) -> Numbers:
        """For rows of the first stream by their places, and for what is their nearest row now:
        which stored row was it before, those after counted on from those before; -1: none."""
        at, before = nearer.before.at[which], nearer.before.places[which]
        most = self._spec.most_places(before)
        if most is not None:
            at = np.where(places <= most, at, -1)
        if nearer.after is None:
            return at
        after = nearer.after.places[which]
        least = self._spec.least_places(after)
        assert least is not None
        is_after = (nearer.after.at[which] >= 0) & (places >= least)
        # Both distances are at most the tolerance where they are compared.
        is_after &= (at < 0) | (after - places < places - before)
        return np.where(is_after, nearer.before.rows.num_rows + nearer.after.at[which], at)

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


def _is_same(equal: pa.RecordBatch | None, count: int) -> npt.NDArray[np.bool_]:
    """Whether the key of each row but the first is that of the row before it."""
    if equal is None or count < 2:
        return np.ones(max(count - 1, 0), np.bool_)
    groups = KeyCodec(equal.schema).encode(equal).to_pylist()
    return np.array([a == b for a, b in pairwise(groups)])


def _middle(one: Numbers, other: Numbers) -> Numbers:
    """The middles, rounded down. A sum of two places may not fit in 64 bits."""
    return (one & other) + ((one ^ other) >> 1)
