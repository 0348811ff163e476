"""Reads of many ranges in the slots of a stream with an expiry."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lsmstate.expiry.time_buckets import Lane
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.store import Positions, RangeMatches


def visible_matches(lane: Lane, found: Iterator[RangeMatches]) -> Iterator[RangeMatches]:
    """Yield the matches without the rows that have expired."""
    for piece in found:
        visible = lane.visible(piece.rows)
        if visible.all():
            yield piece
        elif visible.any():
            before = np.concatenate([[0], np.cumsum(visible)])
            first, stop = before[piece.first], before[piece.stop]
            held = first < stop
            mask = pa.array(visible)
            yield RangeMatches(
                piece.rows.filter(mask),
                piece.ranges[held],
                first[held],
                stop[held],
                None if piece.keys is None else piece.keys.filter(mask),
            )


class _Ends:
    """The first or the last row of each range found so far: a key and a row, by the range."""

    def __init__(self, lane: Lane, count: int, *, is_last: bool) -> None:
        self._codec = lane.codec
        self._is_last = is_last
        #: Per range: its row in ``_rows``, or -1.
        self._place = np.full(count, -1, dtype=np.int64)
        self._keys: pa.RecordBatch | None = None
        self._rows: pa.RecordBatch | None = None

    def add(self, piece: RangeMatches) -> None:
        """Take the piece's ends where they lie beyond those so far. Of equal keys, the row that was
        added first comes first."""
        assert piece.keys is not None, "the pieces were asked for with keys"
        ends = piece.stop - 1 if self._is_last else piece.first
        places, numbers = np.unique(ends, return_inverse=True)
        taken = pa.array(places)
        keys, rows = piece.keys.take(taken), piece.rows.take(taken)
        old = 0 if self._keys is None else self._keys.num_rows
        if self._keys is not None and self._rows is not None:
            keys = pa.concat_batches([self._keys, keys])
            rows = pa.concat_batches([self._rows, rows])
        rank = _ranks(self._codec.encode(keys).order.astype(np.int64))
        best, fresh = self._place[piece.ranges], numbers + old
        behind = rank[fresh] > rank[best]  # a stable order: equal keys by arrival
        better = (best < 0) | (behind if self._is_last else ~behind)
        self._place[piece.ranges[better]] = fresh[better]
        used, renumbered = np.unique(self._place[self._place >= 0], return_inverse=True)
        self._place[self._place >= 0] = renumbered
        self._keys, self._rows = keys.take(pa.array(used)), rows.take(pa.array(used))

    def pieces(self, max_bytes: int, *, with_keys: bool) -> Iterator[RangeMatches]:
        """Yield the ends in key order."""
        if self._keys is None or self._rows is None:
            return
        order = self._codec.encode(self._keys).order.astype(np.int64)
        keys, rows = self._keys.take(pa.array(order)), self._rows.take(pa.array(order))
        ranges = np.flatnonzero(self._place >= 0)
        places = _ranks(order)[self._place[ranges]]
        by_place = np.argsort(places, kind="stable")
        ranges, places = ranges[by_place], places[by_place]
        for piece in pieces_of(row_sizes(rows), max_bytes):
            start, end = piece.start, piece.stop
            low, high = np.searchsorted(places, [start, end])
            first = places[low:high] - start
            yield RangeMatches(
                rows.slice(start, end - start),
                ranges[low:high],
                first,
                first + 1,
                keys.slice(start, end - start) if with_keys else None,
            )


def _ranks(order: Positions) -> Positions:
    """Invert an order: return the place of each position."""
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def end_of_slots(
    lane: Lane,
    slots: Sequence[Iterator[RangeMatches]],
    count: int,
    max_bytes: int,
    *,
    is_last: bool,
    with_keys: bool,
) -> Iterator[RangeMatches]:
    """Yield the first or the last row of each range over all slots, which come in the order in
    which the rows of one key are read. Memory: one row per range."""
    ends = _Ends(lane, count, is_last=is_last)
    for slot in slots:
        for piece in slot:
            ends.add(piece)
    yield from ends.pieces(max_bytes, with_keys=with_keys)
