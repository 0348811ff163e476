"""Worksets of S3J: balls of half the threshold around points that were seen, and what lies near.

- A record at most half the threshold from its nearest centroid is *inner* there. Two inner records
  of one workset are close, so nobody compares them.
- One further than the threshold from all centroids begins a workset of its own.
- Another one is an *outlier* of the nearest workset, and stays one whatever centroids come later.
- A record has a copy in the *outer set* of each workset that is older than its home, and whose
  centroid is at most twice the threshold away. A partner lies at most once the threshold from its
  own centroid, so it is met there, and nowhere else.

The printed rules lose pairs: outliers of one centroid only would have no home, and outer sets with
a lower bound lack records. These are the rules that lose none.

Source: Siachamis et al., *Adaptive distributed streaming similarity joins* (DEBS 2023), section 7.
"""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lsmstate.joins.local.similarity.vectors import Matrix

Numbers = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Metric(Protocol):
    """Distances in a space."""

    def distances(self, points: Matrix, pivots: Matrix) -> Distances:
        """Of each point from each pivot."""
        ...


class Bounds(NamedTuple):
    """How far apart records are, in the space of a metric."""

    inner: float
    """Two records so near to a centroid are close."""
    reach: float
    """Records of a pair are no further apart, and none lies further from its centroid."""
    outer: float
    """Partners of what a workset holds lie no further from its centroid."""

    @classmethod
    def of(cls, reach: float, sure: float, slack: float) -> "Bounds":
        """With distances that may be off by ``slack``; records nearer than ``sure`` are close."""
        return cls(sure / 2 - slack, reach, 2 * reach + 3 * slack)


class Placed(NamedTuple):
    """Where records lie."""

    homes: Numbers
    """Of each record its workset; ``uncovered``, a negative number, of those that have none."""
    distances: Distances
    """From its centroid."""
    is_inner: Mask
    rows: Numbers
    """Records that lie in outer sets, once for each."""
    worksets: Numbers
    """Beside each whose outer set."""


class Worksets:
    """The worksets of one partition; ids rise."""

    def __init__(self, metric: Metric, most: int, centroids: Matrix | None = None) -> None:
        """``most``: where there are so many, records that no workset covers begin none."""
        self._metric = metric
        self._most = most
        self.centroids = centroids
        self.compared = 0
        """Distances from centroids that were computed."""

    @property
    def count(self) -> int:
        """How many there are."""
        return 0 if self.centroids is None else len(self.centroids)

    def distances(self, points: Matrix) -> Distances:
        """Of each point from each centroid."""
        self.compared += len(points) * self.count
        if self.centroids is None:
            return np.empty((len(points), 0))
        return self._metric.distances(points, self.centroids)

    def near(self, points: Matrix, bounds: Bounds) -> tuple[Numbers, Numbers]:
        """Points, and worksets that may hold a partner, of points that have no home here."""
        rows, worksets = np.nonzero(self.distances(points) <= bounds.outer)
        return rows, worksets

    def place(self, points: Matrix, bounds: Bounds, uncovered: int) -> Placed:
        """Place records in the order they come; worksets begin on the way.

        Cost: the distances from all centroids. Memory: as many numbers.
        """
        count = len(points)
        apart = self.distances(points)
        new: list[Distances] = []
        homes = np.full(count, uncovered, np.int64)
        nearest = np.full(count, np.inf)
        if self.count and count:
            homes = apart.argmin(axis=1).astype(np.int64)
            nearest = apart[np.arange(count), homes]
            homes[nearest > bounds.reach] = uncovered
        begun: list[Matrix] = []
        known = self.count
        at = 0
        while known + len(begun) < self._most:
            alone = np.flatnonzero(nearest[at:] > bounds.reach)
            if not len(alone):
                break
            at += int(alone[0])
            centroid = points[at : at + 1]
            found = np.full(count, np.inf)
            found[at:] = self._metric.distances(points[at:], centroid)[:, 0]
            found[at] = 0.0
            self.compared += count - at - 1
            is_nearer = found < nearest
            nearest[is_nearer] = found[is_nearer]
            is_home = is_nearer & (found <= bounds.reach)
            homes[is_home] = known + len(begun)
            begun.append(centroid)
            new.append(found)
            at += 1
        if begun:
            known_before = [] if self.centroids is None else [self.centroids]
            self.centroids = np.concatenate([*known_before, *begun])
            apart = np.concatenate([apart, np.stack(new, axis=1)], axis=1)
        older = np.arange(apart.shape[1]) < np.maximum(homes, 0)[:, None]
        rows, worksets = np.nonzero((apart <= bounds.outer) & older)
        return Placed(
            homes,
            np.where(homes == uncovered, 0.0, nearest),
            (homes != uncovered) & (nearest <= bounds.inner),
            rows,
            worksets,
        )
