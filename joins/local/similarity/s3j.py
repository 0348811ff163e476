"""The index of ``algorithm="s3j"``: worksets, with copies of rows in the outer sets of older ones.

- A row lies at home among the inner rows or the outliers of its workset, and as a copy in outer
  sets (``worksets.py``). A workset w has three homes in the store: 3w, 3w + 1 and 3w + 2.
- A row that is stored here looks into its own workset, and into those whose outer sets it is in.
  One that only probes looks into every workset in reach, and is no member of any.
- Rows that come when there are as many worksets as there may be, and that none covers, lie in one
  home that every row looks into.

Other indexes store a row once and compare fewer pairs. This one is here to be compared with.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.joins.local.similarity.homes import (
    Homes,
    grouped,
    placed,
    ranged,
    with_home,
)
from lsmstate.joins.local.similarity.pivot_points import PivotPoints
from lsmstate.joins.local.similarity.spaces import Space, longest
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.local.similarity.worksets import Bounds, Placed, Worksets
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.store import MultimapStore, Mutation, RangeBounds

UNCOVERED: Final = -1
#: Most worksets: their centroids are in memory, and every row is compared with all.
MOST_WORKSETS: Final = 4096
#: Distances from centroids that are looked at together.
_STEP: Final = 1 << 20
_INNER, _OUTLIERS, _OUTER = range(3)


class S3j:
    """The index by worksets with copies."""

    pairs: int = 0

    def __init__(self, spec: SimilaritySpec, store: MultimapStore, space: Space) -> None:
        self._spec = spec
        self._store = store
        self._space = space
        self._points = PivotPoints(store)
        self._worksets = Worksets(space, MOST_WORKSETS, self._points.points)
        centroids = self._points.points
        self._longest = 0.0 if centroids is None else longest(centroids)
        #: Number of the first row of late, and where its batch was placed.
        self._first = 0
        self._placed = _NOTHING

    @property
    def count(self) -> int:
        """How many worksets there are."""
        return self._worksets.count

    @property
    def compared(self) -> int:
        """Distances from centroids that were computed."""
        return self._worksets.compared

    def forget(self, horizon_us: int) -> None:
        """End worksets that only have rows up to this event time."""
        if self._points.end(horizon_us):
            self._worksets.centroids = self._points.points
            self._placed = _NOTHING

    def _bounds(self, points: Matrix) -> Bounds:
        self._longest = max(self._longest, longest(points))
        width = points.shape[1] if len(points) else 0
        slack = self._space.slack(2 * self._longest + self._space.reach, width)
        return Bounds.of(self._space.reach, self._space.sure, slack)

    def homes(
        self, values: Matrix, arrivals: Numbers, times: Numbers | None
    ) -> tuple[Homes, Orders]:
        """The inner rows or the outliers of the nearest workset."""
        points = self._space.points(values)
        bounds, found, first = self._bounds(points), [], 0
        while first < len(points):
            last = first + max(64, _STEP // max(1, self.count))
            known = self.count
            part = self._worksets.place(points[first:last], bounds, UNCOVERED)
            if self.count > known:
                centroids = self._worksets.centroids
                assert centroids is not None
                own = np.arange(known, self.count)
                self._points.add(centroids[known:], own, np.zeros(len(own)))
            found.append(part._replace(rows=part.rows + first))
            first = last
        self._placed = _joined(found) if found else _NOTHING
        self._first = int(arrivals[0]) if len(arrivals) else 0
        self._note(times)
        homes = self._placed.homes
        kinds = np.where(self._placed.is_inner, _INNER, _OUTLIERS)
        return np.where(homes < 0, UNCOVERED, 3 * self._ids(homes) + kinds), np.zeros(len(homes))

    def _ids(self, worksets: Numbers) -> Homes:
        return self._points.ids[worksets] if self.count else np.zeros(len(worksets), np.int64)

    def _note(self, times: Numbers | None) -> None:
        """A workset is needed as long as its own rows and the copies in it."""
        if times is None:
            return
        owners = np.flatnonzero(self._placed.homes >= 0)
        places = np.append(self._placed.homes[owners], self._placed.worksets)
        who = np.append(owners, self._placed.rows)
        if len(who):
            self._points.note(places, np.zeros(len(who), np.int64), np.zeros(len(who)), times[who])

    def added(
        self,
        stream: str,
        values: Matrix,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        homes: Homes,
        part: slice,
    ) -> Sequence[Mutation]:
        """The copies in outer sets."""
        is_here = (self._placed.rows >= part.start) & (self._placed.rows < part.stop)
        who = self._placed.rows[is_here]
        if not len(who):
            return ()
        some = pa.array(who)
        equal = keys.take(some) if keys.num_columns else keys
        outer = 3 * self._ids(self._placed.worksets[is_here]) + _OUTER
        places = placed(self._spec.place_schema, equal, outer, np.zeros(len(who)))
        return [Mutation("append", stream, places, rows.take(some))]

    def writes(self) -> Sequence[Mutation]:
        """Worksets that are new or over."""
        return self._points.writes()

    def near(
        self,
        stream: str,
        values: Matrix,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """What the rows meet in their worksets."""
        count = len(values)
        every = np.arange(count)
        if arrivals is None:
            found = list(self._reached(values, every))
        else:
            first = int(arrivals[0]) - self._first if count else 0
            found = list(self._met(first, count))
            homeless = np.flatnonzero(self._placed.homes[first : first + count] < 0)
            found += self._reached(values, homeless)
        found.append((every, np.full(count, UNCOVERED), False))
        rows = np.concatenate([rows for rows, _, _ in found])
        homes = np.concatenate([homes for _, homes, _ in found])
        certain = np.repeat([known for _, _, known in found], [len(rows) for rows, _, _ in found])
        if keys.num_columns:
            keys = keys.take(pa.array(rows))
        # Rows that are certain of a place are a group beside those that are not.
        split = pa.RecordBatch.from_arrays(
            [*with_home(keys, homes).columns, pa.array(certain)],
            names=[*(keys.schema.names if keys.num_columns else []), "home", "is certain"],
        )
        order, starts = grouped(split)
        firsts = order[starts[:-1]]
        equal = with_home(keys, homes).take(pa.array(firsts))
        groups = Groups(rows[order], starts, is_certain=certain[firsts])
        yield groups, ranged(self._store, stream, RangeBounds(equal=equal), max_bytes)

    def _reached(self, values: Matrix, rows: Numbers) -> Iterator[tuple[Numbers, Homes, bool]]:
        """Of rows that have no home here: what may be in reach."""
        if not len(rows):
            return
        points = self._space.points(values[rows])
        near, worksets = self._worksets.near(points, self._bounds(points))
        for kind in (_INNER, _OUTLIERS):
            yield rows[near], 3 * self._ids(worksets) + kind, False

    def _met(self, first: int, count: int) -> Iterator[tuple[Numbers, Homes, bool]]:
        """Of rows that were placed just now: rows, homes, and whether all there are close."""
        whole = self._placed
        homes, is_inner = whole.homes[first : first + count], whole.is_inner[first : first + count]
        for mine, known in ((is_inner, True), (~is_inner & (homes >= 0), False)):
            rows = np.flatnonzero(mine)
            base = 3 * self._ids(homes[rows])
            yield rows, base + _INNER, known
            yield rows, base + _OUTLIERS, False
            yield rows, base + _OUTER, False
        is_here = (whole.rows >= first) & (whole.rows < first + count)
        rows, base = whole.rows[is_here] - first, 3 * self._ids(whole.worksets[is_here])
        yield rows, base + _INNER, False
        yield rows, base + _OUTLIERS, False


_NOTHING: Final = Placed(
    np.empty(0, np.int64),
    np.empty(0),
    np.empty(0, np.bool_),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)


def _joined(parts: Sequence[Placed]) -> Placed:
    return parts[0] if len(parts) == 1 else Placed(*map(np.concatenate, zip(*parts, strict=True)))
