"""Retractions: which rows they remove when rows are read.

- A retracted row is stored as a row of its own, under the same key, in a hidden stream beside the
  real one.
- Under a key, the k-th retraction of a row removes the k-th row that is equal to it, whichever came
  first. The order of rows and retractions therefore does not matter, and a retraction without a row
  stays pending until the row comes.
- Memory: one table of bounded size (``RowCounts``) counts the retractions of as many keys at a time
  as fit. A single key whose retractions do not fit is counted in parts: several passes over its
  retractions and rows, for one window of its rows at a time.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.memory.budget import Budget, Holding
from lsmstate.cython_ext.rows.retraction_counts import RowCounts
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.store import Matches, Positions
from lsmstate.store_base.checks import checked_positions
from lsmstate.store_base.guard import Access, Stepwise

#: Part of the memory cap for a table of retractions: four slots of 24 bytes for three used ones.
#: That is 40 000 different rows of a key under a cap of 10 MiB.
TABLE_PART = 8
#: Rows in a window of a key that is read in passes, per byte of a table.
WINDOW_PART = 4
_PIECE_BYTES = 1 << 20

Piece = tuple[Positions, pa.RecordBatch]
Mask = npt.NDArray[np.bool_]
Pieces = Callable[[], Iterator[Piece]]


def most_table_bytes(budget: Budget) -> int:
    """Return the size limit of a table of retractions."""
    return budget.limit // TABLE_PART


def pieces_of(
    lookup: Lookup, positions: Positions, max_bytes: int = _PIECE_BYTES
) -> Iterator[Piece]:
    """Yield the rows of keys at ascending positions of a lookup, each with its position."""
    return iter(partial(Cursor(lookup, positions).next_piece, max_bytes), None)


class LiveRows:
    """Which rows of some keys are live, that is not retracted. They are asked once and in order:
    keys by ascending position, rows in arrival order.

    ``retracted`` looked up the same keys in the hidden stream. ``rows`` reads the rows of the key
    at a position again, from the first on. Only ``positions`` are asked for.
    """

    def __init__(
        self,
        retracted: Lookup,
        rows: Callable[[int], Iterator[Piece]],
        positions: Positions,
        codec: RowCodec,
        budget: Budget,
    ) -> None:
        self._retracted = retracted
        self._rows = rows
        self._codec = codec
        self._budget = budget
        self._counts, _ = retracted.count()
        #: Positions with retractions; those before ``_next`` were counted.
        self._keys = positions[self._counts[positions] > 0]
        self._next = 0
        #: The last position that is counted in the table, or in parts.
        self._reached = -1
        self._table: RowCounts | None = None
        self._large: LargeKey | None = None

    @property
    def keys(self) -> Positions:
        """Positions of the keys that have retractions."""
        return self._keys

    def of(self, positions: Positions, rows: pa.RecordBatch) -> Mask:
        """Return which of the next rows are live; ``positions`` has the key of each."""
        live = np.ones(len(positions), dtype=np.bool_)
        concerned = np.flatnonzero(self._counts[positions])
        if not len(concerned):
            return live
        keys = positions[concerned]
        encoded = self._codec.encode(
            rows if len(keys) == len(positions) else rows.take(pa.array(concerned))
        )
        taken = np.zeros(len(keys), dtype=np.uint8)
        start = 0
        while start < len(keys):
            if keys[start] > self._reached:
                self._count_from(int(keys[start]))
            end = int(np.searchsorted(keys, self._reached, side="right"))
            if self._large is not None:
                taken[start:end] = self._large.taken(end - start)
            else:
                assert self._table is not None
                self._table.take_rows(keys, encoded, start, end, taken)
            start = end
        live[concerned] = taken == 0
        return live

    def _count_from(self, position: int) -> None:
        """Count the retractions of a key, and of as many following keys as fit."""
        if self._table is None:
            self._table = RowCounts(self._budget, "probe", most_table_bytes(self._budget))
        self._next += int(np.searchsorted(self._keys[self._next :], position))
        ends = np.cumsum(self._counts[self._keys[self._next :]])
        room = self._table.begin(int(min(ends[-1], self._table.most_rows)))
        number = max(1, int(np.searchsorted(ends, room, side="right")))
        keys = self._keys[self._next : self._next + number]
        self._next += number
        self._reached = int(keys[-1])
        self._large = None
        # One key may have more retractions than fit, of few different rows.
        for positions, rows in pieces_of(self._retracted, keys):
            if self._table.add_rows(positions, self._codec.encode(rows)) < rows.num_rows:
                # No reference to this object, so that its charge ends as soon as nobody reads.
                self._large = LargeKey(
                    partial(pieces_of, self._retracted, keys),
                    partial(self._rows, position),
                    int(ends[0]),
                    self._codec,
                    self._table,
                    self._budget,
                )
                break


class LargeKey:
    """Which rows of one key are retracted, if its retractions do not fit into a table and are
    counted in parts. It is asked in arrival order."""

    def __init__(
        self,
        retracted: Pieces,
        rows: Pieces,
        count: int,
        codec: RowCodec,
        table: RowCounts,
        budget: Budget,
    ) -> None:
        self._retracted = retracted
        self._rows = rows
        self._count = count
        self._codec = codec
        self._table = table
        self._parts = 2
        #: Marks of the rows from ``_start`` on; none was marked yet.
        self._marks = np.zeros(max(1, most_table_bytes(budget) // WINDOW_PART), dtype=np.uint8)
        self._start = -len(self._marks)
        self._asked = 0
        self._held = Holding(budget, "probe")
        self._held.grow(len(self._marks))

    def taken(self, count: int) -> npt.NDArray[np.uint8]:
        """Return for each of the next rows 1 if it is retracted, else 0."""
        found = []
        while count:
            if self._asked == self._start + len(self._marks):
                self._mark()
            first = self._asked - self._start
            found.append(self._marks[first : first + count].copy())
            self._asked += len(found[-1])
            count -= len(found[-1])
        return np.concatenate(found)

    def _mark(self) -> None:
        """Mark the next window, in as many passes as there are parts."""
        self._start = self._asked
        self._marks[:] = 0
        part = 0
        while part < self._parts:
            counted = self._count_part(part)
            if counted < self._count:
                # The number of parts, if the rest is like what was counted, and a tenth more.
                more = self._parts * 11 * self._count // (10 * (counted + 1))
                self._parts = max(self._parts + 1, more)
                self._marks[:] = 0
                part = 0
                continue
            self._mark_part()
            part += 1

    def _count_part(self, part: int) -> int:
        """Fill the table; return how many retractions were read: less than all if it is full."""
        self._table.begin(self._count // self._parts + 1, part, self._parts)
        counted = 0
        for positions, rows in self._retracted():
            added = self._table.add_rows(np.zeros_like(positions), self._codec.encode(rows))
            counted += added
            if added < rows.num_rows:
                break
        return counted

    def _mark_part(self) -> None:
        end = self._start + len(self._marks)
        first = 0
        for positions, rows in self._rows():
            taken = np.zeros(len(positions), dtype=np.uint8)
            encoded = self._codec.encode(rows)
            self._table.take_rows(np.zeros_like(positions), encoded, 0, len(taken), taken)
            low, high = max(first, self._start), min(first + len(taken), end)
            if low < high:
                self._marks[low - self._start : high - self._start] |= taken[
                    low - first : high - first
                ]
            first += len(taken)
            if first >= end:
                break


class RetractedProbe:
    """A probe of keys of which some may have retractions; their rows are read to be counted."""

    def __init__(
        self, lookup: Lookup, retracted: Lookup, codec: RowCodec, budget: Budget, access: Access
    ) -> None:
        self._lookups: tuple[Lookup, Lookup] | None = lookup, retracted
        self._codec = codec
        self._budget = budget
        self._access = access
        self.counts: npt.NDArray[np.int64]
        self.row_bytes: npt.NDArray[np.int64]
        self.counts, self.row_bytes = lookup.count()
        self._count_live()
        access.hold(self)

    def let_go(self) -> None:
        """Release files and memory."""
        self._lookups = None

    @property
    def _found(self) -> tuple[Lookup, Lookup]:
        assert self._lookups is not None, "the store is open"
        return self._lookups

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the live rows of some of the keys, in pieces."""
        asked = checked_positions(self.counts, positions)
        with self._access():
            pass  # an outdated probe is refused at once
        return Stepwise(self._access, self._live(asked, max_bytes))

    def _live_rows(self, positions: Positions) -> LiveRows:
        lookup, retracted = self._found
        return LiveRows(
            retracted,
            lambda position: pieces_of(lookup, np.array([position], dtype=np.int64)),
            positions,
            self._codec,
            self._budget,
        )

    def _count_live(self) -> None:
        live_rows = self._live_rows(np.flatnonzero(self.counts))
        for positions, rows in pieces_of(self._found[0], live_rows.keys):
            taken = ~live_rows.of(positions, rows)
            sizes = self._codec.encode(rows.filter(pa.array(taken))).sizes()
            np.subtract.at(self.counts, positions[taken], 1)
            np.subtract.at(self.row_bytes, positions[taken], sizes)

    def _live(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        live_rows = self._live_rows(positions)
        for found, rows in pieces_of(self._found[0], positions, max_bytes):
            live = live_rows.of(found, rows)
            if live.all():
                yield Matches(found, rows)
            elif live.any():
                yield Matches(found[live], rows.filter(pa.array(live)))
