"""ExpiringStore: expiry by event time, over any backend.

- A stream with an ``Expiry`` is a lane of slots (``time_buckets.py``), which are streams of the
  store below. The rows of one time bucket thus lie together in key order, in files of their own if
  there are many.
- A bucket that has expired as a whole is removed by one range deletion, which drops these files
  unread. Expired rows of other buckets are filtered when they are read.
- The state of a lane is kept in the store, in one write with the rows that it describes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import date, datetime
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry.combined_probe import CombinedProbe, FilteredProbe
from lsmstate.expiry.combined_ranges import end_of_slots, visible_matches
from lsmstate.expiry.merged_entries import merged_entries
from lsmstate.expiry.retraction_lookup import held_rows
from lsmstate.expiry.time_buckets import NOWHERE, Lane, LaneState
from lsmstate.lsm.checkpoints import Checkpoint, Checkpoints
from lsmstate.options import Options
from lsmstate.pieces import Pieces
from lsmstate.stats import StoreStats
from lsmstate.store import (
    BatchLike,
    Entries,
    KeyBounds,
    KeyNames,
    KeyValues,
    Mutation,
    Positions,
    Probe,
    RangeBounds,
    RangeMatches,
    StoreReader,
    StreamSchema,
)
from lsmstate.store_base.batch_limits import (
    check_list,
    check_mutation,
    check_row_sizes,
    key_parts_of,
    part_bytes,
    parts_of,
)
from lsmstate.store_base.checks import (
    check_piece_bytes,
    checked_entries,
    checked_keys,
    encoded_keys,
    refuse_advance,
    stream_of,
)
from lsmstate.store_base.key_range import key_range
from lsmstate.store_base.range_bounds import encoded_ranges, refuse_zones
from lsmstate.store_base.range_reads import check_one_end
from lsmstate.store_base.read_pieces import EntryPieces, row_pieces
from lsmstate.store_base.reads import StoreReads, in_one_call
from lsmstate.store_base.slots import LANES, OUT_SLOTS, SLOTS, with_slots
from lsmstate.store_base.writes import AdmittedWrites, Backend

_MOVED_BYTES = 256 << 10


class LaneReads(StoreReads):
    """Reads of streams, with and without an expiry, from a store or a snapshot."""

    def __init__(
        self,
        streams: Mapping[str, StreamSchema],
        lanes: Mapping[str, Lane],
        inner: StoreReader,
    ) -> None:
        self._streams = streams
        self._lanes = lanes
        self._reads = inner
        #: Counters of the store below to subtract: keys in further slots, moved rows.
        self._extra_keys = 0
        self._extra_rows = 0

    def calling(self) -> AbstractContextManager[None]:
        return nullcontext()  # each read of a snapshot is a call of its own

    @property
    def streams(self) -> Mapping[str, StreamSchema]:
        return self._streams

    def _lane(self, stream: str) -> Lane | None:
        return self._lanes.get(stream_of(self._streams, stream).name)

    @in_one_call
    def probe(
        self, stream: str, keys: BatchLike | KeyBatch, positions: Positions | None = None
    ) -> Probe:
        """Look up keys without reading a row.

        With an expiry, each slot is probed. If rows of a slot may have expired, the rows found are
        read to be counted, and ``row_bytes`` is an upper bound.
        """
        lane = self._lane(stream)
        if lane is None:
            return self._reads.probe(stream, keys, positions)
        encoded = encoded_keys(lane.schema, lane.codec, keys)
        asked = encoded.n_valid if positions is None else len(positions)
        self._extra_keys += asked * (len(lane.readable()) - 1)
        parts: list[Probe] = []
        for name, may_be_due in lane.readable():
            found = self._reads.probe(name, encoded, positions)
            parts.append(FilteredProbe(found, lane.visible) if may_be_due else found)
        return CombinedProbe(len(encoded), parts)

    @in_one_call
    def scan(self, stream: str, max_bytes: int = 1 << 20) -> Pieces[pa.RecordBatch]:
        """Read all live rows of a stream; with an expiry one time bucket after another, by key in
        it."""
        lane = self._lane(stream)
        if lane is None:
            return self._reads.scan(stream, max_bytes)
        parts = [(self._reads.scan(name, max_bytes), due) for name, due in lane.readable()]
        return row_pieces(self._scanned(lane, parts), lane.schema)

    def _scanned(
        self, lane: Lane, parts: Sequence[tuple[Iterator[pa.RecordBatch], bool]]
    ) -> Iterator[pa.RecordBatch]:
        for part, may_be_due in parts:
            for rows in part:
                visible = lane.visible(rows) if may_be_due else None
                if visible is None or visible.all():
                    yield rows
                elif visible.any():
                    yield rows.filter(pa.array(visible))

    @in_one_call
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
        """Read the rows of a key range; with an expiry the slots are merged by key."""

        def of(name: str) -> Pieces[Entries]:
            return self._reads.iterate(
                name, low=low, high=high, prefix=prefix, reverse=reverse, max_bytes=max_bytes
            )

        lane = self._lane(stream)
        if lane is None:
            return of(stream)
        key_range(lane.schema, low, high, prefix)  # errors name the user's stream
        sources = [
            _visible_entries(of(name), lane) if may_be_due else of(name)
            for name, may_be_due in lane.readable()
        ]
        return EntryPieces(merged_entries(lane.codec, sources, reverse), lane.schema)

    @in_one_call
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
        """Read many ranges; with an expiry one time bucket after another, by key in it."""
        lane = self._lane(stream)
        if lane is None:
            return self._reads.probe_ranges(
                stream, bounds, max_bytes, first=first, last=last, with_keys=with_keys
            )
        check_one_end(first, last)
        check_piece_bytes(max_bytes)
        ranges = encoded_ranges(lane.schema, bounds)
        if not first and not last:
            parts = [
                self._slot_ranges(lane, name, ranges, max_bytes, due=due, with_keys=with_keys)
                for name, due in lane.readable()
            ]
            return chain.from_iterable(parts)
        refuse_zones(ranges, "first=True" if first else "last=True")
        ends = [
            # Rows of a slot may have expired, the last one too: all are read, and filtered.
            self._slot_ranges(lane, name, ranges, max_bytes, due=due, with_keys=True)
            if due
            else self._reads.probe_ranges(
                name, ranges, max_bytes, first=first, last=last, with_keys=True
            )
            for name, due in lane.readable()
        ]
        return end_of_slots(lane, ends, len(ranges), max_bytes, is_last=last, with_keys=with_keys)

    def _slot_ranges(
        self,
        lane: Lane,
        name: str,
        ranges: EncodedRanges,
        max_bytes: int,
        *,
        due: bool,
        with_keys: bool,
    ) -> Iterator[RangeMatches]:
        found = self._reads.probe_ranges(name, ranges, max_bytes, with_keys=with_keys)
        return visible_matches(lane, found) if due else found

    @in_one_call
    def count_ranges(
        self, stream: str, bounds: RangeBounds | EncodedRanges
    ) -> npt.NDArray[np.int64]:
        """Count the rows of many ranges; those of slots where rows may have expired are read."""
        lane = self._lane(stream)
        if lane is None:
            return self._reads.count_ranges(stream, bounds)
        ranges = encoded_ranges(lane.schema, bounds)
        refuse_zones(ranges, "count_ranges")
        counts = np.zeros(len(ranges), dtype=np.int64)
        for name, due in lane.readable():
            if not due:
                counts += self._reads.count_ranges(name, ranges)
                continue
            for piece in visible_matches(lane, self._reads.probe_ranges(name, ranges)):
                counts[piece.ranges] += piece.stop - piece.first
        return counts

    @in_one_call
    def stats(self) -> StoreStats:
        """Return the counters of the store below, corrected for the slots."""
        found = self._reads.stats()
        return replace(
            found,
            probes=replace(found.probes, keys=found.probes.keys - self._extra_keys),
            writes=replace(
                found.writes, appended_rows=found.writes.appended_rows - self._extra_rows
            ),
        )

    def close(self) -> None:
        """Close the store below."""
        self._reads.close()


def _visible_entries(entries: Iterator[Entries], lane: Lane) -> Iterator[Entries]:
    for keys, rows in entries:
        visible = pa.array(lane.visible(rows))
        left = rows.filter(visible)
        if left.num_rows:
            yield Entries(keys.filter(visible), left)


class ExpiringStore(LaneReads, AdmittedWrites):
    """A store with expiring streams, over a store that knows no expiry. A row that has expired when
    it arrives is not stored."""

    def __init__(
        self,
        streams: Sequence[StreamSchema],
        options: Options,
        open_inner: Callable[[Sequence[StreamSchema]], Backend],
        *,
        is_reader: bool = False,
    ) -> None:
        """Open the store. ``is_reader``: the store below takes no writes, so
        nothing is reclaimed."""
        lanes = {s.name: Lane(s, s.expiry) for s in streams if s.expiry is not None}
        inner = open_inner(with_slots(streams))
        super().__init__({stream.name: stream for stream in streams}, lanes, inner)
        self._inner = inner
        self._options = options
        #: Whether the outcome of a write that changes lanes' states is unknown.
        self._is_unsure = False
        try:
            for lane in lanes.values():
                self._adopt(lane, is_reader=is_reader)
        except BaseException:
            inner.close()
            raise

    def calling(self) -> AbstractContextManager[None]:
        return self._inner.calling()

    def _adopt(self, lane: Lane, *, is_reader: bool) -> None:
        """Continue where the store was left, also in the middle of a move of rows."""
        lane.adopt(self._inner.get(LANES.name, (lane.schema.name,)))
        self._extra_keys += 1
        if not is_reader and (lane.state.moving is not None or lane.state.ring.passed()):
            self._reclaim(lane)

    def _lane(self, stream: str) -> Lane | None:
        """Return the lane of a stream, and complete a move that an error interrupted: rows would be
        found in both places, or in neither."""
        self._make_sure()
        lane = super()._lane(stream)
        if lane is not None and lane.state.moving is not None:
            self._finish_move(lane)
        return lane

    def _finish_moves(self) -> None:
        """Complete moves that an error interrupted: who only reads could not."""
        for stream in self._lanes:
            self._lane(stream)

    def _make_sure(self) -> None:
        """After a write with an unknown outcome: ask the store below what was written."""
        if self._is_unsure:
            for lane in self._lanes.values():
                lane.adopt(self._inner.get(LANES.name, (lane.schema.name,)))
                self._extra_keys += 1
            self._is_unsure = False

    # Writing ------------------------------------------------------------------------------

    @in_one_call
    def append(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Store rows under their keys; rows that have expired are not stored."""
        lane = self._lane(stream)
        if lane is None:
            return self._inner.append(stream, rows, keys, key=key)
        rows, keys = checked_entries(lane.schema, rows, keys, key)
        return self._store("append", lane, rows, keys)

    @in_one_call
    def retract(
        self,
        stream: str,
        rows: BatchLike,
        keys: BatchLike | KeyBatch | None = None,
        *,
        key: KeyNames | None = None,
    ) -> int:
        """Take back rows under their keys.

        The retraction of an expired row does nothing. A pending retraction expires when its row
        would. InvalidArgumentError: a retraction cannot stay pending because the time of its row
        lies outside the time ring, more than its life ahead of the watermark.
        """
        lane = self._lane(stream)
        if lane is None:
            return self._inner.retract(stream, rows, keys, key=key)
        rows, keys = checked_entries(lane.schema, rows, keys, key)
        return self._store("retract", lane, rows, keys)

    def _store(
        self,
        kind: Literal["append", "retract"],
        lane: Lane,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch | KeyBatch,
    ) -> int:
        check_row_sizes(rows, self._options)
        if lane.sizes.total(rows, keys) <= part_bytes(self._options):
            return self.write([Mutation(kind, lane.schema.name, keys, rows)])

        def parts() -> Iterator[list[Mutation]]:
            for part, part_keys in parts_of(rows, keys, self._options, lane.sizes):
                yield [Mutation(kind, lane.schema.name, part_keys, part)]

        with self.admitting(parts()):
            return sum(map(self.write, parts()))

    @in_one_call
    def admitting(self, parts: Iterable[Sequence[Mutation]]) -> AbstractContextManager[None]:
        """Return a context that raises what one of the writes would raise, before the first."""
        self._make_sure()
        return self._inner.admitting(self._tried(parts))

    def _tried(self, parts: Iterable[Sequence[Mutation]]) -> Iterator[Sequence[Mutation]]:
        """Yield what each part becomes in the slots, one after another; none is written."""
        begun = {name: lane.state for name, lane in self._lanes.items()}
        reached = begun
        before: list[Mutation] = []
        for part in parts:
            planned: list[Mutation] = []
            try:
                self._set_states(reached)
                for mutation in part:
                    planned += self._planned(mutation, [*before, *planned])
                reached = {name: lane.state for name, lane in self._lanes.items()}
            finally:
                self._set_states(begun)
            yield planned
            if any(mutation.kind == "retract" for mutation in part):
                before += planned  # the next one does not find what this one has taken

    def _set_states(self, states: Mapping[str, LaneState]) -> None:
        for name, lane in self._lanes.items():
            lane.state = states[name]

    @in_one_call
    def delete(
        self, stream: str, keys: BatchLike | KeyBatch, *, key: KeyNames | None = None
    ) -> None:
        """Remove all rows of the keys; with an expiry from all slots at once."""
        lane = self._lane(stream)
        if lane is None:
            self._inner.delete(stream, keys, key=key)
            return
        keys = checked_keys(lane.schema, keys, key)
        most = part_bytes(self._options) // len(lane.readable())
        if lane.sizes.total(None, keys) <= most:
            self.write([Mutation("delete", stream, keys)])
            return

        def parts() -> Iterator[list[Mutation]]:
            for part in key_parts_of(keys, most, lane.sizes):
                yield [Mutation("delete", stream, part)]

        with self.admitting(parts()):
            for part in parts():
                self.write(part)

    @in_one_call
    def write(self, mutations: Sequence[Mutation]) -> int:
        """Make several writes atomically."""
        check_list(mutations)
        mutations = list(mutations)
        self._make_sure()
        for mutation in mutations:  # a continued move saves its own progress
            check_mutation(mutation)
            self._lane(mutation.stream)
        states = {name: lane.state for name, lane in self._lanes.items()}
        self._is_unsure = True  # until the planned states are stored below
        planned: list[Mutation] = []
        for mutation in mutations:
            planned += self._planned(mutation, planned)
        changed = [
            lane.saved(lane.state)
            for name, lane in self._lanes.items()
            if lane.state != states[name]
        ]
        stored = self._inner.write(planned + changed)
        self._is_unsure = False
        self._extra_rows += len(changed)
        return stored - len(changed)

    def _planned(self, mutation: Mutation, before: Sequence[Mutation]) -> list[Mutation]:
        """Plan a mutation in the slots, after what the write does ``before``. The lane's state
        includes its rows."""
        lane = super()._lane(mutation.stream)
        if lane is None:
            return [mutation]
        kind, _, keys, rows = mutation
        if isinstance(keys, KeyBounds):
            key_range(lane.schema, *keys)  # errors name the user's stream
            return [mutation._replace(stream=name) for name, _ in lane.readable()]
        if rows is not None:
            rows, keys = checked_entries(lane.schema, rows, keys)
            rows = lane.row_codec.plain(rows)  # no views: Arrow cannot take rows from them
        encoded = encoded_keys(lane.schema, lane.codec, keys)
        planned: list[Mutation] = []
        if kind in ("put", "delete"):
            planned += [Mutation("delete", name, encoded) for name, _ in lane.readable()]
        if rows is not None and kind in ("append", "put"):
            places, lane.state = lane.placed(rows)
            planned += _in_slots("append", lane, places, encoded, rows)
        elif rows is not None and kind == "retract":
            places, lane.state = self._retracted(lane, encoded, rows, before)
            planned += _in_slots("retract", lane, places, encoded, rows)
        return planned

    def _retracted(
        self, lane: Lane, keys: KeyBatch, rows: pa.RecordBatch, earlier: Sequence[Mutation]
    ) -> tuple[npt.NDArray[np.int64], LaneState]:
        """Return the slot of each retraction, where its row is or will be, and the state that
        includes them."""
        self._inner.write([])  # a store that takes no writes raises this first
        places, state = lane.placed(rows)
        asked = np.flatnonzero(places == state.out_slot)
        if len(asked):
            some = rows.take(pa.array(asked))
            slot = lane.names[state.out_slot]
            held = held_rows(self._inner, lane, slot, keys.take(asked), some, earlier)
            if not held.all():
                row = some.slice(int(np.flatnonzero(~held)[0]), 1).to_pylist()[0]
                raise InvalidArgumentError(
                    f"stream {lane.schema.name!r}: a retraction of {str(row)[:200]}, which is not "
                    "stored, cannot wait for it: its time lies out of the buckets around the "
                    "watermark; append it first"
                )
        return places, state

    # Expiring -----------------------------------------------------------------------------

    @in_one_call
    def advance(self, stream: str, watermark: datetime | date | int | pa.Scalar) -> None:
        """Advance the watermark of a stream with an expiry, and forget the rows that it expires."""
        lane = self._lane(stream)
        if lane is None:
            refuse_advance(self._streams, stream, watermark)
            return
        ring = lane.state.ring.with_watermark(lane.times.watermark(watermark))
        if ring != lane.state.ring:
            self._save(lane, replace(lane.state, ring=ring))
            self._reclaim(lane)

    def _write_with(self, lane: Lane, state: LaneState, mutations: Sequence[Mutation]) -> None:
        """Write, together with the new state of the lane."""
        self._is_unsure = True
        self._extra_rows += self._inner.write([*mutations, lane.saved(state)])
        lane.state = state
        self._is_unsure = False

    def _save(self, lane: Lane, state: LaneState) -> None:
        self._write_with(lane, state, [])

    def _reclaim(self, lane: Lane) -> None:
        """Empty the slots of buckets that have expired as a whole, and move the ring past them. If
        interrupted, the next call continues."""
        self._finish_move(lane)
        first = lane.state.ring.first
        for slot in lane.state.ring.passed():
            self._inner.delete_range(lane.names[slot])
        self._save(lane, replace(lane.state, ring=lane.state.ring.advanced()))
        if lane.state.ring.first != first and lane.state.out_is_behind:
            self._empty_out(lane)

    def _empty_out(self, lane: Lane) -> None:
        """Move the rows outside the ring to their present slots."""
        state = lane.state
        other = OUT_SLOTS[1] if state.out_slot == OUT_SLOTS[0] else OUT_SLOTS[0]
        moved = replace(state, moving=state.out_slot, moved_rows=0, out_slot=other)
        self._save(lane, replace(moved, ring=state.ring.without_out()))
        self._finish_move(lane)

    def _finish_move(self, lane: Lane) -> None:
        """Continue a move of rows: each piece is one write with its progress."""
        if lane.state.moving is None:
            return
        source = lane.names[lane.state.moving]
        to_skip = lane.state.moved_rows
        with self._inner.snapshot() as found:
            for keys, rows in found.iterate(source, max_bytes=_MOVED_BYTES):
                skipped = min(to_skip, rows.num_rows)
                to_skip -= skipped
                # A piece may end with a huge row, which gets a write of its own.
                left = rows.slice(skipped), keys.slice(skipped)
                for part, part_keys in parts_of(*left, self._options, lane.sizes):
                    self._move(lane, part_keys, part)
        self._inner.delete_range(source)
        self._save(lane, replace(lane.state, moving=None, moved_rows=0))

    def _move(self, lane: Lane, keys: pa.RecordBatch | KeyBatch, rows: pa.RecordBatch) -> None:
        places, state = lane.placed(rows)
        state = replace(state, moved_rows=state.moved_rows + rows.num_rows)
        encoded = encoded_keys(lane.schema, lane.codec, keys)
        moves = _in_slots("append", lane, places, encoded, rows)
        self._write_with(lane, state, moves)

    # Committing ---------------------------------------------------------------------------

    @in_one_call
    def commit(self) -> str:
        """Make all writes durable and return the commit pointer."""
        self._finish_moves()
        return self._inner.commit()

    @in_one_call
    def checkpoint(self, name: str) -> Checkpoint:
        """Make a named checkpoint; only with the backend ``lsm``."""
        self._finish_moves()
        made: Checkpoint = self._inner.checkpoint(name)
        return made

    @property
    def checkpoints(self) -> Checkpoints:
        """The named checkpoints; only with the backend ``lsm``."""
        found: Checkpoints = self._inner.checkpoints
        return found

    def flush(self) -> None:
        """Flush the memtables into one run; only with the backend ``lsm``."""
        self._inner.flush()

    def compact(self) -> None:
        """Merge the runs, and free the space of deleted rows; only with the backend ``lsm``."""
        self._inner.compact()

    @in_one_call
    def snapshot(self) -> LaneReads:
        """Return a snapshot; which rows have expired does not change in it either."""
        self._finish_moves()
        lanes = {name: lane.copy() for name, lane in self._lanes.items()}
        return LaneReads(self._streams, lanes, self._inner.snapshot())


def _in_slots(
    kind: Literal["append", "retract"],
    lane: Lane,
    places: npt.NDArray[np.int64],
    keys: KeyBatch,
    rows: pa.RecordBatch,
) -> list[Mutation]:
    """Yield one write for each slot that rows go to."""
    planned: list[Mutation] = []
    for slot in np.flatnonzero(np.bincount(places + 1, minlength=SLOTS + 1)) - 1:
        if slot == NOWHERE:
            continue
        positions = np.flatnonzero(places == slot)
        if len(positions) == rows.num_rows:
            planned.append(Mutation(kind, lane.names[slot], keys, rows))
        else:
            part = rows.take(pa.array(positions))
            planned.append(Mutation(kind, lane.names[slot], keys.take(positions), part))
    return planned
