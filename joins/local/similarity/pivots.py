"""Pivots: a row's home is the workset of the nearest pivot, ordered by the distance to it.

By the triangle inequality, partners' distances to one pivot differ by the threshold at most. So a
row looks into the worksets in its reach, and there into a ring.

- Pivots are points that were seen. They never change. Where the data drifts, new ones are added,
  and rows that come later take the nearest of all. Stored rows stay where they are.
- Rows that came before the first pivots lie in one home that every row looks into.
- Each workset's least and greatest distance are remembered; the others need no look.

Source: the worksets of *S3J* (Siachamis et al., DEBS 2023), whose copies of rows this needs not.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.local.similarity.homes import (
    Homes,
    OnePlace,
    grouped,
    ranged,
    with_home,
)
from lsmstate.joins.local.similarity.spaces import Space, longest
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import PIVOTS, REACHES, SimilaritySpec
from lsmstate.store import MultimapStore, Mutation, RangeBounds, StreamSchema

#: The home of rows that came before the first pivots.
UNCOVERED: Final = -1
#: Most pivots: more of them cost more in distances to them than they save.
MOST_PIVOTS: Final = 400
#: Rows that must have come before there are pivots, and for each pivot then.
_FIRST_ROWS: Final = 500
_ROWS_PER_PIVOT: Final = 8
#: New pivots are added where rows lie further from theirs than this many times those before.
_DRIFT: Final = 1.5
#: Most of the pairs that may be left for pivots to be worth it: rings cost more a pair than tiles.
_WORTH: Final = 0.25
#: Rows that are looked at for that.
_SAMPLE: Final = 256


class Pivots(OnePlace):
    """The index by pivots."""

    def __init__(
        self, spec: SimilaritySpec, store: MultimapStore, space: Space, arrived: int
    ) -> None:
        self._store = store
        self._space = space
        self._is_chosen = spec.algorithm == "pivots"
        self._seen = arrived
        self._points: Matrix | None = None
        #: By pivot the least and the greatest distance of its rows; of none infinite and -infinite.
        self._low, self._high = np.empty(0), np.empty(0)
        #: By pivot, whether its reach changed since the last writes.
        self._changed = np.empty(0, np.bool_)
        self._new = 0
        self._longest = 0.0
        self._usual = np.inf
        self._tried = 0
        self._load()

    @property
    def count(self) -> int:
        """How many pivots there are."""
        return 0 if self._points is None else len(self._points)

    def _load(self) -> None:
        points = [
            np.array(rows.column(0).to_pylist(), np.float64)
            for rows in self._store.scan(PIVOTS.name)
        ]
        if points:
            self._points = np.concatenate(points)
            self._longest = longest(self._points)
        count = self.count
        self._low, self._high = np.full(count, np.inf), np.full(count, -np.inf)
        self._changed = np.zeros(count, np.bool_)
        for keys, rows in self._store.iterate(REACHES.name):
            ids = keys.column(0).to_numpy()
            low, high = (column.to_numpy() for column in rows.columns)
            for at, least, most in zip(ids, low, high, strict=True):
                if at == UNCOVERED:
                    self._tried, self._usual = int(least), most or np.inf
                else:
                    self._low[at], self._high[at] = least, most

    def homes(self, values: Matrix, arrivals: Numbers) -> tuple[Homes, Orders]:
        """The nearest pivot of each vector, and the distance to it."""
        points, rows = self._space.points(values), len(arrivals)
        self._longest = max(self._longest, longest(points))
        self._learn(points)
        self._seen += rows
        if self._points is None:
            return np.full(rows, UNCOVERED, np.int64), np.zeros(rows)
        distances = self._space.distances(points, self._points)
        nearest = distances.argmin(axis=1)
        orders = distances[np.arange(rows), nearest]
        np.minimum.at(self._low, nearest, orders)
        np.maximum.at(self._high, nearest, orders)
        self._changed[nearest] = True
        return nearest.astype(np.int64), orders

    def _learn(self, points: Matrix) -> None:
        """Add pivots, if enough rows came, and if what came lies far from those there are."""
        if self._points is None:
            if self._seen + len(points) >= max(_FIRST_ROWS, 2 * self._tried):
                self._begin(points)
            return
        some = points[:: max(1, len(points) // _SAMPLE)]
        apart = self._space.distances(some, self._points).min(axis=1)
        is_far = apart > _DRIFT * self._usual
        if is_far.mean() > 0.2 and self.count < 4 * MOST_PIVOTS:
            wanted = max(1, min(MOST_PIVOTS // 4, len(points) // _ROWS_PER_PIVOT))
            far = self._space.distances(points, self._points).min(axis=1) > _DRIFT * self._usual
            self._add(_spread(points[far], wanted))

    def _begin(self, points: Matrix) -> None:
        wanted = min(MOST_PIVOTS, len(points) // _ROWS_PER_PIVOT)
        if wanted < 2:
            return
        pivots = _spread(points, wanted)
        distances = self._space.distances(points, pivots)
        self._tried = self._seen + len(points)
        if not self._is_chosen and not self._is_worth(distances):
            return
        self._usual = float(np.quantile(distances.min(axis=1), 0.9))
        self._add(pivots)

    def _is_worth(self, distances: npt.NDArray[np.float64]) -> bool:
        """Whether most pairs of a sample would be left out."""
        homes = distances.argmin(axis=1)
        orders = distances[np.arange(len(homes)), homes]
        some = distances[:: max(1, len(distances) // _SAMPLE)]
        is_near = np.abs(some[:, homes] - orders) <= self._space.reach
        return float(is_near.mean()) < _WORTH

    def _add(self, pivots: Matrix) -> None:
        self._points = pivots if self._points is None else np.concatenate([self._points, pivots])
        self._new += len(pivots)
        self._low = np.append(self._low, np.full(len(pivots), np.inf))
        self._high = np.append(self._high, np.full(len(pivots), -np.inf))
        self._changed = np.append(self._changed, np.zeros(len(pivots), np.bool_))

    def writes(self) -> Sequence[Mutation]:
        """New pivots, and reaches that grew."""
        found = []
        if self._new:
            assert self._points is not None
            first = self.count - self._new
            ids = pa.array(np.arange(first, self.count), pa.int64())
            points = pa.array(list(self._points[first:]), PIVOTS.rows.field(0).type)
            found.append(_put(PIVOTS, ids, [points]))
            self._new = 0
        changed = np.flatnonzero(self._changed)
        ids, low, high = changed, self._low[changed], self._high[changed]
        usual = self._usual if np.isfinite(self._usual) else 0.0
        ids, low = np.append(ids, UNCOVERED), np.append(low, float(self._tried))
        high = np.append(high, usual)
        columns = [pa.array(low), pa.array(high)]
        found.append(_put(REACHES, pa.array(ids, pa.int64()), columns))
        self._changed[:] = False
        return found

    def near(
        self, stream: str, values: Matrix, keys: pa.RecordBatch, max_bytes: int
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The rings of all worksets in reach, and the rows that came before the pivots."""
        points = self._space.points(values)
        count = len(points)
        most = max(self._longest, longest(points))
        # Both distances of a pair may be off.
        reach = self._space.reach + 2 * self._space.slack(
            2 * most + self._space.reach, points.shape[1] if count else 0
        )
        rows, homes = np.arange(count), np.full(count, UNCOVERED)
        orders = np.zeros(count)
        if self._points is not None:
            distances = self._space.distances(points, self._points).T
            is_near = (distances - reach <= self._high[:, None]) & (
                distances + reach >= self._low[:, None]
            )
            near, who = np.nonzero(is_near)
            rows, homes = np.append(rows, who), np.append(homes, near)
            orders = np.append(orders, distances[near, who])
        if keys.num_columns:
            keys = keys.take(pa.array(rows))
        places = with_home(keys, homes)
        order, starts = grouped(places)
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        order = order[np.lexsort((orders[order], owners))]
        sorted_orders = orders[order]
        low = sorted_orders[starts[:-1]] - reach
        high = sorted_orders[starts[1:] - 1] + reach
        equal = places.take(pa.array(order[starts[:-1]]))
        bounds = RangeBounds(equal=equal, low=pa.array(low), high=pa.array(high))
        groups = Groups(rows[order], starts, sorted_orders, reach)
        yield groups, ranged(self._store, stream, bounds, max_bytes, with_orders=True)


def _spread(points: Matrix, count: int) -> Matrix:
    """Some of the points, evenly by their places in the batch, and no two equal."""
    chosen = points[np.linspace(0, len(points) - 1, min(count, len(points))).astype(np.int64)]
    return np.unique(chosen, axis=0)


def _put(stream: StreamSchema, ids: pa.Array, columns: Sequence[pa.Array]) -> Mutation:
    return Mutation(
        "put",
        stream.name,
        pa.RecordBatch.from_arrays([ids], schema=stream.key),
        pa.RecordBatch.from_arrays(list(columns), schema=stream.rows),
    )
