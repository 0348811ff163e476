"""Pivots: a row lies in a half of the workset of the nearest pivot, by the distance to it.

By the triangle inequality, partners' distances to one pivot differ by the threshold at most. So a
row looks into the worksets in its reach, and there into a ring.

- A workset has two halves: the rows that are nearer to the pivot's companion than the pivot is, and
  those beyond. Distances to the companion differ by the threshold at most too, so most rows look
  into one half.
- Pivots are points that were seen. They never change. Where the data drifts, new ones are added,
  and rows that come later take the nearest of all. Stored rows stay where they are.
- A pivot ends when all its rows are forgotten.
- A row lies with the nearest pivot, so a pivot that is much further than another one known at that
  time has no partner.
- How many pivots there are follows from a sample: more of them rule out more pairs, and each costs
  a distance.
- Rows that came before the first pivots lie in one home that every row looks into.
- Each half's least and greatest distance are remembered; the others need no look.

Source: the worksets of *S3J* (Siachamis et al., DEBS 2023), whose copies of rows this needs not.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
from lsmstate.joins.local.similarity.pivot_points import PivotPoints
from lsmstate.joins.local.similarity.spaces import Space, VectorSpace, longest
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.store import MultimapStore, Mutation, RangeBounds

Distances = npt.NDArray[np.float64]

#: The home of rows that came before the first pivots.
UNCOVERED: Final = -1
#: How many pivots there may be at first: more would cost more in distances than they save.
CHOICES: Final = (25, 50, 100, 200, 400)
MOST_PIVOTS: Final = CHOICES[-1]
#: Rows that must have come before there are pivots, and for each pivot then.
_FIRST_ROWS: Final = 500
_ROWS_PER_PIVOT: Final = 8
#: New pivots are added where rows lie further from theirs than this many times those before.
_DRIFT: Final = 1.5
#: Most of the pairs that may be left for pivots to be worth it: a pair in a ring costs 10 to 60
#: times what it does in tiles of all. A function of the user's has no tiles.
_WORTH: Final = 0.02
_WORTH_OF_FUNCTIONS: Final = 0.25
#: They are chosen anew when so many times the rows have come, by so many rows of a batch.
_AGAIN: Final = 4
_CHOSEN_BY: Final = 1024
#: Sets of pivots of one size that are tried.
_TRIED: Final = 4
#: Rows that are looked at for that, and stored rows that a row is taken to be compared with.
_SAMPLE: Final = 128
_STORED_ROWS: Final = 50_000
#: Distances that are kept from storing to looking for partners.
_KEPT_DISTANCES: Final = 1 << 21


class Halves(NamedTuple):
    """Where points lie among pivots: places of pivots, sides, and distances."""

    nearest: Numbers
    sides: Numbers
    orders: Distances

    @classmethod
    def of(cls, distances: Distances, companions: Numbers, apart: Distances) -> "Halves":
        """The nearest pivot of each point, and its side."""
        rows = np.arange(len(distances))
        nearest = distances.argmin(axis=1).astype(np.int64)
        sides = distances[rows, companions[nearest]] >= apart[nearest]
        return cls(nearest, sides.astype(np.int64), distances[rows, nearest])


class Pivots(OnePlace):
    """The index by pivots."""

    def __init__(
        self, spec: SimilaritySpec, store: MultimapStore, space: Space, arrived: int
    ) -> None:
        self._store = store
        self._space = space
        self._is_chosen = spec.algorithm == "pivots"
        self._seen = arrived
        self._pivots = PivotPoints(store)
        self._companions = self._pivots.companion_places()
        tried, usual = self._pivots.common
        self._tried, self._usual = int(tried), usual or np.inf
        self._longest = 0.0 if self._pivots.points is None else longest(self._pivots.points)
        #: Number of the first row of late, and the distances of its batch.
        self._last: tuple[int, Distances] = (0, np.empty((0, 0)))
        self.compared = 0

    @property
    def count(self) -> int:
        """How many pivots there are."""
        return self._pivots.count

    def forget(self, horizon_us: int) -> None:
        """End pivots that only have rows up to this event time."""
        if self._pivots.end(horizon_us):
            self._companions = self._pivots.companion_places()
            self._last = (0, np.empty((0, 0)))
            if not self.count:
                self._tried, self._seen = 0, 0

    def homes(
        self, values: Matrix, arrivals: Numbers, times: Numbers | None
    ) -> tuple[Homes, Orders]:
        """The half of the nearest pivot of each vector, and the distance to it."""
        return self.homes_of(self._space.points(values), arrivals, times)

    def homes_of(
        self, points: Matrix, arrivals: Numbers, times: Numbers | None
    ) -> tuple[Homes, Orders]:
        """The same for points."""
        rows = len(arrivals)
        self._longest = max(self._longest, longest(points))
        self._learn(points)
        self._seen += rows
        if self._pivots.points is None:
            return np.full(rows, UNCOVERED, np.int64), np.zeros(rows)
        distances = self._distances(points)
        self._last = (0, np.empty((0, 0)))
        if distances.size <= _KEPT_DISTANCES and rows:
            self._last = (int(arrivals[0]), distances)
        found = Halves.of(distances, self._companions, self._pivots.apart)
        self._pivots.note(found.nearest, found.sides, found.orders, times)
        return 2 * self._pivots.ids[found.nearest] + found.sides, found.orders

    def _distances(self, points: Matrix) -> Distances:
        assert self._pivots.points is not None
        self.compared += len(points) * self.count
        return self._space.distances(points, self._pivots.points)

    def _learn(self, points: Matrix) -> None:
        """Add pivots: when enough rows came, when many more came since, and when they lie far from
        those there are."""
        coming = self._seen + len(points)
        if coming >= max(_FIRST_ROWS, _AGAIN * self._tried) and self.count < MOST_PIVOTS:
            self._choose(points)
        elif self._pivots.points is not None:
            some = points[:: max(1, len(points) // _SAMPLE)]
            is_far = self._distances(some).min(axis=1, initial=np.inf) > _DRIFT * self._usual
            if len(some) and is_far.mean() > 0.2 and self.count < 4 * MOST_PIVOTS:
                wanted = max(1, min(MOST_PIVOTS // 4, len(points) // _ROWS_PER_PIVOT))
                far = self._distances(points).min(axis=1) > _DRIFT * self._usual
                self._add(_spread(points[far], wanted))

    def _choose(self, points: Matrix) -> None:
        """Make as many pivots as a sample says, unless there are about as many."""
        pivots = _spread(points, min(MOST_PIVOTS, len(points) // _ROWS_PER_PIVOT))
        if len(pivots) < 2:
            return
        self._tried = self._seen + len(points)
        self._pivots.remember((float(self._tried), self._pivots.common[1]))
        some = points[:: -(-len(points) // _CHOSEN_BY)]
        distances = self._space.distances(some, pivots)
        self.compared += distances.size
        between = self._space.distances(pivots, pivots)
        self.compared += between.size
        costs = []
        for count in sorted({min(count, len(pivots)) for count in CHOICES}):
            # Several sets of this size, for some random ones are better than others.
            for first in range(0, min(len(pivots) - count + 1, _TRIED * count), count):
                part = slice(first, first + count)
                left = self._left(distances[:, part], between[part, part])
                costs.append((count + left * _STORED_ROWS, left, first, count))
        _, left, first, count = min(costs)
        worth = _WORTH if isinstance(self._space, VectorSpace) else _WORTH_OF_FUNCTIONS
        if (not self._is_chosen and left > worth) or count <= 2 * self.count:
            return
        part = slice(first, first + count)
        self._usual = float(np.quantile(distances[:, part].min(axis=1), 0.9))
        self._pivots.remember((float(self._tried), self._usual))
        self._add(pivots[part][: count - self.count])

    def _left(self, distances: Distances, between: Distances) -> float:
        """Which part of the pairs of a sample would be compared."""
        companions, apart = _companions(between, 0)
        rows = Halves.of(distances, companions, apart)
        some = distances[:: max(1, len(distances) // _SAMPLE)]
        own = some[:, rows.nearest]
        other, reach = some[:, companions[rows.nearest]], self._space.reach
        is_left = np.abs(own - rows.orders) <= reach
        is_left &= own + rows.orders > self._space.sure
        edge = apart[rows.nearest]
        is_left &= np.where(rows.sides == 1, other + reach >= edge, other - reach <= edge)
        return float(is_left.mean())

    def _add(self, pivots: Matrix) -> None:
        known = self.count
        every = (
            pivots if self._pivots.points is None else np.concatenate([self._pivots.points, pivots])
        )
        self._pivots.add(pivots, *_companions(self._space.distances(every, every), known))
        self._companions = self._pivots.companion_places()

    def writes(self) -> Sequence[Mutation]:
        """Pivots that are new or over, and reaches that grew."""
        return self._pivots.writes()

    def near(
        self,
        stream: str,
        values: Matrix,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The rings of all halves in reach, and the rows that came before the pivots."""
        points = self._space.points(values)
        yield from self.near_points(stream, points, keys, max_bytes, arrivals)

    def near_points(
        self,
        stream: str,
        points: Matrix,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The same for points."""
        count = len(points)
        distances = None
        if self._pivots.points is not None and count:
            distances = self._again(points, arrivals)
        most = max(self._longest, longest(points))
        # Both distances of a pair may be off.
        slack = self._space.slack(2 * most + self._space.reach, points.shape[1] if count else 0)
        reach = self._space.reach + 2 * slack
        rows, homes = np.arange(count), np.full(count, UNCOVERED)
        # Rows from before the pivots have the order 0: all are in reach, none is close for sure.
        orders = np.full(count, reach)
        if distances is not None:
            for side, is_near in enumerate(self._near(distances, reach)):
                who, near = np.nonzero(is_near)
                rows = np.append(rows, who)
                homes = np.append(homes, 2 * self._pivots.ids[near] + side)
                orders = np.append(orders, distances[who, near])
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
        groups = Groups(rows[order], starts, sorted_orders, reach, self._space.sure - 2 * slack)
        yield groups, ranged(self._store, stream, bounds, max_bytes, with_orders=True)

    def _again(self, points: Matrix, arrivals: Numbers | None) -> Distances:
        """The distances of points, which may be rows that were placed just now."""
        first, known = self._last
        if arrivals is not None and len(arrivals):
            at = int(arrivals[0]) - first
            if at >= 0 and at + len(points) <= len(known):
                return known[at : at + len(points)]
        return self._distances(points)

    def _near(self, distances: Distances, reach: float) -> tuple[npt.NDArray[np.bool_], ...]:
        """Of each side which pivots may have a partner of which points."""
        pivots = self._pivots
        # A partner lay nearer to its pivot than to all that were known then.
        _, begins, times = np.unique(pivots.since, return_index=True, return_inverse=True)
        least = np.minimum.reduceat(distances, begins, axis=1)
        least = np.minimum.accumulate(least, axis=1) + 2 * reach
        can_match = distances <= (least[:, times] if len(begins) > 1 else least)
        others = distances[:, self._companions]
        found = []
        for side in (0, 1):
            low, high = pivots.low[:, side] - reach, pivots.high[:, side] + reach
            is_near = can_match & (distances <= high) & (distances >= low)
            if side:
                is_near &= others >= pivots.apart - reach
            else:
                is_near &= others <= pivots.apart + reach
            found.append(is_near)
        return tuple(found)


def _companions(between: Distances, first: int) -> tuple[Numbers, Distances]:
    """The nearest other pivot of each from ``first`` on, and how far it is."""
    rows = np.arange(first, len(between))
    if len(between) == 1:
        return rows, np.zeros(1)
    apart = between[first:].copy()
    apart[rows - first, rows] = np.inf
    companions = apart.argmin(axis=1).astype(np.int64)
    return companions, apart[rows - first, companions]


def _spread(points: Matrix, count: int) -> Matrix:
    """Some of the points, evenly by their places in the batch, no two equal, in random order."""
    chosen = points[np.linspace(0, len(points) - 1, min(count, len(points))).astype(np.int64)]
    distinct = np.unique(chosen, axis=0)
    return distinct[np.random.default_rng(0).permutation(len(distinct))]
