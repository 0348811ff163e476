"""AsofLocalJoin: rows of the first stream wait until their nearest row of the second is known.

Results come from ``advance``. Waiting rows that are decided leave together with the watermark,
after the results were handed out: a call that is broken off is made again from the state before.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.bound_rows import coalesced, parts_of
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.parts.time_checks import moment
from lsmstate.joins.local.parts.write_parts import WriteParts, appends, write_all
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS, kept_watermark, watermark_write
from lsmstate.joins.local.timed.kept_places import KeptPlaces
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.asof import LEAST, MOST, PLACE, TICKS, AsofSpec, shifted
from lsmstate.joins.specs.final import waiting_stream
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import KeyBounds, MultimapStore, Mutation, RangeBounds

#: Rows that are forgotten at once.
_FORGOTTEN_ROWS: Final = 1 << 15


class Arrived(NamedTuple):
    """A batch: rows in time with what is equal and their ticks, rows without a time, late rows."""

    rows: pa.RecordBatch
    keys: list[pa.Array]
    ticks: pa.Array
    timeless: pa.RecordBatch
    late: pa.RecordBatch


class AsofLocalJoin:
    """The local join of an AsofSpec, whose streams are ``spec.stream_schemas``.

    Not thread-safe. The store belongs to the caller, who commits and closes it.
    """

    def __init__(self, spec: AsofSpec, store: MultimapStore, context: Context) -> None:
        """Take the watermark up to which rows have been decided."""
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._waiting = waiting_stream(spec.left)
        self._gatherer = Gatherer(list(spec.streams.values()), spec.rows_schema)
        self._kept = KeptPlaces(spec, store, context.piece_bytes)
        #: Microseconds since 1970, or as the numbers are; None before the first ``advance``.
        self.watermark_us = kept_watermark(store)
        #: With ``late="side"``: the late rows of the last batch.
        self.late_rows: pa.RecordBatch | None = None
        self._late_count = 0
        self._next_us = self.watermark_us
        self._unfinished: Results | None = None
        if self.watermark_us is not None:
            self._expire(self.watermark_us)  # perhaps it was broken off

    @property
    def counts(self) -> Mapping[str, int]:
        """``late_rows``: rows that came late."""
        return {LATE_ROWS: self._late_count}

    def process(self, batch: Batch) -> Results:
        """Store a batch, but for late rows. The results are rows of the first stream without a
        time, which nothing can match, if such rows are wanted; all others come from ``advance``."""
        stream, spec = batch.stream, self._spec
        arrived = self._arrived(batch)
        if stream == spec.left:
            self._wait(arrived.rows, arrived.keys, arrived.ticks)
        else:
            self._keep(arrived.rows, arrived.keys, arrived.ticks)
        self._note_late(arrived)
        alone: list[pa.RecordBatch] = []
        if stream == spec.left and spec.how == "left":
            alone = [self._alone(part) for part in parts_of(arrived.timeless, self._piece_bytes)]
        self._unfinished = Results(alone, schema=spec.output_schema)
        return self._unfinished

    def _arrived(self, batch: Batch) -> "Arrived":
        """The rows of a batch that are in time, and the others."""
        stream, spec = batch.stream, self._spec
        call = f"process({stream!r})"
        spec.check_stream(stream)
        check_is_stored(batch)
        self._settle(call)
        rows = as_batch(batch.rows, spec.streams[stream], call)
        keys = _columns(batch.computed) or spec.key_columns(stream, rows)
        ticks = spec.ticks(stream, rows)
        is_timed = ticks.is_valid().to_numpy(zero_copy_only=False)
        is_late = np.zeros(rows.num_rows, np.bool_)
        if self.watermark_us is not None:
            now = spec.ticks_of(self.watermark_us)
            is_late = is_timed & (ticks.fill_null(MOST).to_numpy() <= now)
        stored = pa.array(is_timed & ~is_late)
        return Arrived(
            rows.filter(stored),
            [each.filter(stored) for each in keys],
            ticks.filter(stored),
            rows.filter(pa.array(~is_timed)),
            rows.filter(pa.array(is_late)),
        )

    def _note_late(self, arrived: "Arrived") -> None:
        self._late_count += arrived.late.num_rows
        if self._spec.late == "side":
            self.late_rows = arrived.late

    def advance(self, watermark_us: int) -> Results:
        """The results that are known for good by this watermark; once they are consumed, what is
        not needed any more is forgotten. A lower watermark than before gives and changes nothing.

        Cost: one range of keys for each row whose waiting is over. Looking ahead without a
        tolerance, one for each row that waits.
        """
        self._settle("advance()")
        if self.watermark_us is not None and watermark_us <= self.watermark_us:
            return Results((), schema=self._spec.output_schema)
        self._next_us = watermark_us
        pieces = coalesced(self._decided(watermark_us), self._piece_bytes)
        self._unfinished = Results(
            self._handed_out(pieces, watermark_us), schema=self._spec.output_schema
        )
        return self._unfinished

    def finish(self) -> None:
        """To be called before a commit: end what the last call began. InvalidArgumentError if its
        results were neither consumed nor closed."""
        self._settle("commit()")

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        self._kept.close()

    def _settle(self, call: str) -> None:
        check_finished(call, self._unfinished)
        if self._next_us is not None and self._next_us != self.watermark_us:
            self._pass(self._next_us)  # results given up unread are given up

    def _wait(self, rows: pa.RecordBatch, keys: list[pa.Array], ticks: pa.Array) -> None:
        """Store rows of the first stream."""
        spec = self._spec
        if spec.how == "inner" and keys:
            known = all_known(keys)
            rows, ticks = rows.filter(known), ticks.filter(known)
            keys = [each.filter(known) for each in keys]
        whole = pa.RecordBatch.from_arrays([*rows.columns, *keys], schema=spec.waiting_rows)
        under = [ticks, *keys] if spec.is_open else [ticks]
        self._append(self._waiting, whole, under)

    def _keep(self, rows: pa.RecordBatch, keys: list[pa.Array], ticks: pa.Array) -> None:
        """Store rows of the second stream, and forget those of their keys that nobody needs."""
        places = pa.array(self._places(ticks.to_numpy()))
        # Otherwise the store forgets them by their time.
        is_open = not self._spec.looks_ahead and self._spec.tolerance is None
        if is_open and rows.num_rows and self.watermark_us is not None:
            # First: a batch that is refused is not stored, and what goes is not needed anyway.
            self._replace(keys, self._spec.ticks_of(self.watermark_us))
        try:
            self._append(self._spec.right, rows, [*keys, places])
        except BaseException:  # some of them may be stored
            self._kept.forget()
            raise
        self._kept.written(rows, keys, places.to_numpy())

    def _append(self, stream: str, rows: pa.RecordBatch, keys: list[pa.Array]) -> None:
        if not rows.num_rows:
            return
        schema = self._store.streams[stream].key
        under = pa.RecordBatch.from_arrays(keys, schema=schema)
        writes = WriteParts(lambda: appends(stream, rows, under, self._piece_bytes))
        write_all(self._store, writes, self._kept)

    def _replace(self, keys: list[pa.Array], now: int) -> None:
        """Forget rows that no row after the watermark can need: all but the last one up to it."""
        spec = self._spec
        distinct = self._distinct(keys)
        count = 1 if distinct is None else distinct.num_rows
        if not count:
            return
        latest = np.full(count, LEAST)
        upto = RangeBounds(distinct, None, pa.array(np.full(count, now)))
        found = self._store.probe_ranges(spec.right, upto, last=True, with_keys=True)
        for piece in found:
            assert piece.keys is not None
            latest[piece.ranges] = piece.keys.column(PLACE).to_numpy()[piece.first]
        # Ranges are gone through in key order, a bounded number of rows at a time: a range that was
        # read to its end is not read again.
        begin = 0
        while True:
            ahead = None if distinct is None else distinct.slice(begin)
            stale = RangeBounds(ahead, None, pa.array(latest[begin:]), includes_high=False)
            gone: list[pa.RecordBatch] = []
            count = last = 0
            for piece in self._store.probe_ranges(spec.right, stale, with_keys=True):
                assert piece.keys is not None
                gone.append(piece.keys)
                count, last = count + piece.keys.num_rows, int(piece.ranges[-1])
                if count >= _FORGOTTEN_ROWS:
                    break
            for keys in gone:
                self._store.delete(spec.right, keys)
            if count < _FORGOTTEN_ROWS:
                return
            begin += last

    def _distinct(self, keys: list[pa.Array]) -> pa.RecordBatch | None:
        """The different keys of a batch; None: all rows lie under one."""
        if not keys:
            return None
        batch = pa.RecordBatch.from_arrays(keys, schema=self._spec.key_schema)
        batch = batch.filter(all_known(keys))
        encoded = KeyCodec(batch.schema).encode(batch)
        _, starts = encoded.distinct()
        return batch.take(pa.array(encoded.order[starts[:-1]].astype(np.int64)))

    def _decided(self, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """The results of the rows whose waiting is over."""
        due = self._store.iterate(
            self._waiting, high=self._due_before(watermark_us), max_bytes=self._piece_bytes
        )
        for keys, rows in due:
            # What is encoded in few bytes may be large as Arrow data.
            ticks = keys.column(TICKS).to_numpy()
            first = 0
            for part in parts_of(rows, self._piece_bytes):
                yield from self._looked_up(part, ticks[first : first + part.num_rows], watermark_us)
                first += part.num_rows

    def _handed_out(
        self, pieces: Iterator[pa.RecordBatch], watermark_us: int
    ) -> Iterator[pa.RecordBatch]:
        yield from pieces
        self._pass(watermark_us)

    def _looked_up(
        self, waiting: pa.RecordBatch, ticks: npt.NDArray[np.int64], watermark_us: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows that have waited, each with its nearest row."""
        spec = self._spec
        own = waiting.select(range(len(spec.streams[spec.left])))
        if spec.looks_both_ways:
            bounds = self._nearest(self._equal(waiting), ticks)
        else:
            bounds = self._bounds(waiting, ticks, watermark_us)
        yield from self._beside_last(own, bounds)

    def _beside_last(self, own: pa.RecordBatch, bounds: RangeBounds) -> Iterator[pa.RecordBatch]:
        """Rows of the first stream, each with the last row in its range."""
        spec = self._spec
        sizes = row_sizes(own)
        is_alone = np.ones(own.num_rows, np.bool_)
        kept = None if spec.looks_both_ways else self._kept.nearest(own, sizes, bounds)
        if kept is not None:
            for lefts, picked in kept:
                is_alone[lefts] = False
                yield from self._kept.made(picked)
        else:
            for found in self._store.probe_ranges(spec.right, bounds, self._piece_bytes, last=True):
                is_alone[found.ranges] = False
                both = sizes[found.ranges] + row_sizes(found.rows)[found.first]
                picked = Picked([own, found.rows], [found.ranges, found.first], both)
                yield from picked.made(self._gatherer, self._piece_bytes)
        if spec.how == "left" and is_alone.any():
            yield self._alone(own.filter(pa.array(is_alone)))

    def _bounds(
        self,
        waiting: pa.RecordBatch,
        ticks: npt.NDArray[np.int64],
        watermark_us: int,
    ) -> RangeBounds:
        """The range of places that the nearest row of each waiting row is the last one of."""
        spec = self._spec
        high = self._places(ticks)
        low = spec.least_places(high)
        if spec.is_open:
            low = np.full(len(ticks), ~spec.ticks_of(watermark_us))
        return RangeBounds(
            self._equal(waiting),
            None if low is None else pa.array(low),
            pa.array(high),
            includes_high=not spec.is_strict,
        )

    def _nearest(self, equal: pa.RecordBatch | None, ticks: npt.NDArray[np.int64]) -> RangeBounds:
        """The place of the row that is the nearest before or after; of two as near, the one
        before."""
        most, now = self._spec.tolerance_ticks or 0, pa.array(ticks)
        low, high = shifted(ticks, -most), shifted(ticks, most)
        if self._spec.window is not None:
            low = np.maximum(low, self._spec.first_ticks(ticks))
            high = np.minimum(high, self._spec.last_ticks(ticks))
        lower, upper = (
            RangeBounds(equal, pa.array(low), now),
            RangeBounds(equal, now, pa.array(high)),
        )
        before, has_before = self._found_places(lower, is_last=True)
        after, has_after = self._found_places(upper, is_last=False)
        is_before = has_before & (~has_after | (ticks - before <= after - ticks))
        places = pa.array(np.where(is_before, before, after), mask=~(has_before | has_after))
        return RangeBounds(equal, places, places)

    def _found_places(
        self, bounds: RangeBounds, *, is_last: bool
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The place of the last or the first row of each range, and whether there is any."""
        assert bounds.low is not None
        places = np.zeros(len(bounds.low), np.int64)
        is_found = np.zeros(len(places), np.bool_)
        found = self._store.probe_ranges(
            self._spec.right,
            bounds,
            self._piece_bytes,
            first=not is_last,
            last=is_last,
            with_keys=True,
        )
        for piece in found:
            assert piece.keys is not None
            places[piece.ranges] = piece.keys.column(PLACE).to_numpy()[piece.first]
            is_found[piece.ranges] = True
        return places, is_found

    def _equal(self, waiting: pa.RecordBatch) -> pa.RecordBatch | None:
        """What is equal, of rows that wait; None: nothing."""
        keys = waiting.columns[len(self._spec.streams[self._spec.left]) :]
        return pa.RecordBatch.from_arrays(keys, schema=self._spec.key_schema) if keys else None

    def _places(self, ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return ~ticks if self._spec.looks_ahead else ticks

    def _alone(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the first stream beside nothing."""
        spec = self._spec
        nulls = [pa.nulls(rows.num_rows, field.type) for field in spec.streams[spec.right]]
        return pa.RecordBatch.from_arrays([*rows.columns, *nulls], schema=spec.rows_schema)

    def _due_before(self, watermark_us: int) -> tuple[int]:
        """Rows that wait under ticks before this are decided, or may be."""
        last = self._spec.ticks_of(watermark_us) - self._spec.waits_ticks
        return (min(max(last + 1, LEAST), MOST),)

    def _pass(self, watermark_us: int) -> None:
        """Forget the rows whose waiting is over, and go on from this watermark."""
        leaving = []
        if self._spec.is_open:
            self._forget_matched(watermark_us)
        else:
            before = KeyBounds(high=self._due_before(watermark_us))
            leaving = [Mutation("delete_range", self._waiting, before)]
        self._store.write([*leaving, watermark_write(watermark_us)])
        self.watermark_us = self._next_us = watermark_us
        self._expire(watermark_us)

    def _forget_matched(self, watermark_us: int) -> None:
        """Looking ahead without a tolerance: the waiting rows that a later row has come for."""
        with self._store.snapshot() as view:
            due = view.iterate(
                self._waiting, high=self._due_before(watermark_us), max_bytes=self._piece_bytes
            )
            for keys, rows in due:
                ticks = keys.column(TICKS).to_numpy()
                bounds = self._bounds(rows, ticks, watermark_us)
                is_found = np.zeros(rows.num_rows, np.bool_)
                for found in view.probe_ranges(
                    self._spec.right, bounds, self._piece_bytes, last=True
                ):
                    is_found[found.ranges] = True
                if is_found.any():
                    self._store.delete(self._waiting, keys.filter(pa.array(is_found)))

    def _expire(self, watermark_us: int) -> None:
        """Let the store forget rows by their times."""
        for name in self._spec.owners:
            schema = self._store.streams[name]
            if schema.expiry is None:
                continue
            kind = schema.rows.field(schema.expiry.column).type
            now = (
                moment(watermark_us, has_zone=kind.tz is not None)
                if self._spec.has_stamps
                else watermark_us
            )
            self._store.advance(name, now)


def _columns(computed: pa.RecordBatch | KeyBatch | None) -> list[pa.Array]:
    return list(computed.columns) if isinstance(computed, pa.RecordBatch) else []


def all_known(columns: list[pa.Array]) -> pa.Array:
    """Which rows have no null in any of the columns."""
    known = columns[0].is_valid()
    for each in columns[1:]:
        known = pc.and_(known, each.is_valid())
    return known
