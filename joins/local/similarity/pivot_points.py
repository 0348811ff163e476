"""Pivots as the store keeps them: points that were seen, and what lies in the worksets around them.

- An id is of one pivot only. ``since`` is the least id of those that came together with it: what
  lies in its workset was placed when all pivots up to those were known.
- Each pivot has a *companion*, the nearest other pivot of its time. It says on which *side* of the
  workset a row lies.
- A pivot whose rows are all forgotten ends, unless another one still has it as its companion.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import PIVOTS, REACHES
from lsmstate.store import MultimapStore, Mutation, StreamSchema

Numbers = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float64]

#: The key of what is known of no pivot alone.
COMMON: Final = -1
#: No row lies in a workset.
NEVER: Final = -(1 << 62)


class PivotPoints:
    """The pivots of one bucket. Arrays have an item, or a row, for each, by ascending ids."""

    def __init__(self, store: MultimapStore) -> None:
        self._store = store
        self.ids = np.empty(0, np.int64)
        self.points: Matrix | None = None
        self.companions = np.empty(0, np.int64)
        """Ids; a pivot that is its own has none."""
        self.apart = np.empty(0)
        """How far the companion is."""
        self.since = np.empty(0, np.int64)
        self.low, self.high = np.empty((0, 2)), np.empty((0, 2))
        """By side, the least and the greatest distance of a row; infinite and -infinite of none."""
        self.latest = np.empty(0, np.int64)
        """The last event time of a row, where rows have any."""
        self.common = (0.0, 0.0)
        """What the index remembers beside them."""
        self._next = 0
        self._new = 0
        self._gone: list[int] = []
        self._changed = np.empty(0, np.bool_)
        self._is_common_changed = False
        self._load()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.ids)

    def _load(self) -> None:
        found = []
        for keys, rows in self._store.iterate(PIVOTS.name):
            ids = keys.column(0).to_pylist()
            found += [(at, *row.values()) for at, row in zip(ids, rows.to_pylist(), strict=True)]
        found.sort(key=lambda row: row[0])
        if found:
            ids, points, companions, apart, since = zip(*found, strict=True)
            self._set(
                np.array(ids, np.int64),
                np.array(points, np.float64),
                np.array(companions, np.int64),
                np.array(apart),
                np.array(since, np.int64),
            )
            self._next = int(self.ids[-1]) + 1
        for keys, rows in self._store.iterate(REACHES.name):
            for at, row in zip(keys.column(0).to_pylist(), rows.to_pylist(), strict=True):
                if at == COMMON:
                    self.common = (row["low"], row["high"])
                    self._next = max(self._next, row["latest"])
                    continue
                place = int(np.searchsorted(self.ids, at))
                self.low[place] = row["low"], row["low_beyond"]
                self.high[place] = row["high"], row["high_beyond"]
                self.latest[place] = row["latest"]

    def _set(
        self, ids: Numbers, points: Matrix, companions: Numbers, apart: Distances, since: Numbers
    ) -> None:
        """Add pivots that have no rows yet."""
        count = len(ids)
        known = [] if self.points is None else [self.points]
        self.points = np.concatenate([*known, points])
        self.ids = np.append(self.ids, ids)
        self.companions = np.append(self.companions, companions)
        self.apart = np.append(self.apart, apart)
        self.since = np.append(self.since, since)
        self.low = np.concatenate([self.low, np.full((count, 2), np.inf)])
        self.high = np.concatenate([self.high, np.full((count, 2), -np.inf)])
        self.latest = np.append(self.latest, np.full(count, NEVER))
        self._changed = np.append(self._changed, np.zeros(count, np.bool_))

    def add(self, points: Matrix, companions: Numbers, apart: Distances) -> None:
        """Add pivots. ``companions``: places among all pivots, those that are added last; a
        pivot's own place: it has none."""
        ids = np.arange(self._next, self._next + len(points))
        every = np.append(self.ids, ids)
        since = np.full(len(points), self._next, np.int64)
        self._set(ids, points, every[companions], apart, since)
        self._next += len(points)
        self._new += len(points)

    def companion_places(self) -> Numbers:
        """Where the companion of each pivot stands."""
        return np.searchsorted(self.ids, self.companions)

    def note(
        self, places: Numbers, sides: Numbers, orders: Distances, times: Numbers | None
    ) -> None:
        """Rows were placed: beside each its pivot's place, its side and its distance."""
        np.minimum.at(self.low, (places, sides), orders)
        np.maximum.at(self.high, (places, sides), orders)
        if times is not None:
            np.maximum.at(self.latest, places, times)
        self._changed[places] = True

    def remember(self, common: tuple[float, float]) -> None:
        """Set what the index remembers beside pivots."""
        self._is_common_changed |= common != self.common
        self.common = common

    def end(self, horizon_us: int) -> bool:
        """End pivots all of whose rows are of event times up to ``horizon_us``, which nobody needs
        any more. New ones that have no row yet stay. Returns whether there were any."""
        is_over = (self.latest <= horizon_us) & (self.latest != NEVER)
        while True:
            needed = np.isin(self.ids, self.companions[~is_over])
            if not (is_over & needed).any():
                break
            is_over &= ~needed
        if not is_over.any():
            return False
        kept = ~is_over
        self._new -= int(is_over[self.count - self._new :].sum())
        self._gone += self.ids[is_over].tolist()
        assert self.points is not None
        self.points = self.points[kept] if kept.any() else None
        for name in ("ids", "companions", "apart", "since", "low", "high", "latest", "_changed"):
            setattr(self, name, getattr(self, name)[kept])
        self._is_common_changed = True
        return True

    def writes(self) -> Sequence[Mutation]:
        """What changed since the last call."""
        found = []
        if self._gone:
            ids = pa.array(self._gone, pa.int64())
            for stream in (PIVOTS, REACHES):
                keys = pa.RecordBatch.from_arrays([ids], schema=stream.key)
                found.append(Mutation("delete", stream.name, keys))
            self._gone = []
        if self._new:
            assert self.points is not None
            new = slice(self.count - self._new, self.count)
            points = pa.array(list(self.points[new]), PIVOTS.rows.field(0).type)
            columns = [points, *map(pa.array, (self.companions[new], self.apart[new]))]
            columns.append(pa.array(self.since[new]))
            found.append(_put(PIVOTS, self.ids[new], columns))
            self._new = 0
        changed = np.flatnonzero(self._changed)
        ids = self.ids[changed]
        columns = [self.low[changed, 0], self.high[changed, 0]]
        columns += [self.low[changed, 1], self.high[changed, 1], self.latest[changed]]
        if self._is_common_changed:
            last = (*self.common, 0.0, 0.0, self._next)
            ids = np.append(ids, COMMON)
            columns = [
                np.append(column, value) for column, value in zip(columns, last, strict=True)
            ]
        if len(ids):
            columns[-1] = columns[-1].astype(np.int64)
            found.append(_put(REACHES, ids, [pa.array(column) for column in columns]))
        self._changed[:] = False
        self._is_common_changed = False
        return found


def _put(stream: StreamSchema, ids: Numbers, columns: Sequence[pa.Array]) -> Mutation:
    return Mutation(
        "put",
        stream.name,
        pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=stream.key),
        pa.RecordBatch.from_arrays(list(columns), schema=stream.rows),
    )
