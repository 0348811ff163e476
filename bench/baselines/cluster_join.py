"""ClusterJoin, the baseline of S3J: every record lies with its nearest centroid, and has copies.

- A record is *inner* in the partition of its nearest centroid, and *outer* in each other one whose
  centroid is at most twice the threshold further than its own. Of two partitions one gives the
  other's records, by ``gives``. So a pair is compared once.
- As published, the records of several partitions lie under one key of Flink: 500 partitions under
  129 keys. Records of unrelated partitions are compared there, and a pair may come twice.

Sources: Das Sarma et al., *ClusterJoin* (PVLDB 7, 2014); the experiments of Siachamis et al.,
*Adaptive distributed streaming similarity joins* (DEBS 2023).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]
#: Of each point from each centroid.
Distances = Callable[[Matrix, Matrix], Matrix]

_KEYS = 128


class JavaRandom:
    """The numbers of ``java.util.Random``, by its documented recurrence."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def _bits(self, count: int) -> int:
        self._state = (self._state * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return self._state >> (48 - count)

    def double(self) -> float:
        """The next number from 0 to 1."""
        return ((self._bits(26) << 27) + self._bits(27)) / (1 << 53)


def random_centroids(count: int, width: int, seed: int = 42) -> Matrix:
    """Centroids, uniform from -1 to 1."""
    numbers = JavaRandom(seed)
    return np.array([[2 * numbers.double() - 1 for _ in range(width)] for _ in range(count)])


def gives(i: Numbers, j: Numbers) -> npt.NDArray[np.bool_]:
    """Whether records of partition i have copies in j; of j in i it is the opposite."""
    found: npt.NDArray[np.bool_] = (i < j) ^ ((i + j) % 2 == 1)
    return found


def partitions(
    points: Matrix, centroids: Matrix, distances: Distances, threshold: float
) -> tuple[Numbers, Numbers, Numbers]:
    """The partition in which each point is inner; then points and partitions in which they are
    outer."""
    inner = np.empty(len(points), np.int64)
    rows, outer = [], []
    step = max(1, (1 << 21) // len(centroids))
    for first in range(0, len(points), step):
        apart = distances(points[first : first + step], centroids)
        own = apart.argmin(axis=1)
        inner[first : first + step] = own
        least = apart[np.arange(len(own)), own]
        near = apart <= least[:, None] + 2 * threshold
        near[np.arange(len(own)), own] = False
        who, where = np.nonzero(near)
        is_given = gives(own[who], where)
        rows.append(who[is_given] + first)
        outer.append(where[is_given])
    return inner, np.concatenate(rows), np.concatenate(outer)


class ClusterJoin:
    """ClusterJoin of two sets of points."""

    def __init__(
        self, centroids: Matrix, distances: Distances, threshold: float, *, as_published: bool
    ) -> None:
        self._centroids = centroids
        self._distances = distances
        self._threshold = threshold
        self._is_published = as_published

    def keys(self, partition: Numbers) -> Numbers:
        """The key of Flink under which the records of a partition lie."""
        count = len(self._centroids)
        return (partition * _KEYS + count - 1) // count if self._is_published else partition

    def _placed(self, points: Matrix) -> tuple[Numbers, Numbers, Numbers]:
        inner, rows, outer = partitions(points, self._centroids, self._distances, self._threshold)
        return self.keys(inner), rows, self.keys(outer)

    def counts(self, left: Matrix, right: Matrix) -> tuple[int, int]:
        """Comparisons, with those to centroids, and copies of records that are stored."""
        compared, copies = (len(left) + len(right)) * len(self._centroids), 0
        sizes = []
        for points in (left, right):
            inner, _, outer = self._placed(points)
            copies += len(inner) + len(outer)
            count = len(self._centroids) + 1
            sizes.append((np.bincount(inner, minlength=count), np.bincount(outer, minlength=count)))
        (inner_left, outer_left), (inner_right, outer_right) = sizes
        compared += int(inner_left @ (inner_right + outer_right) + outer_left @ inner_right)
        return compared, copies

    def pairs(self, left: Matrix, right: Matrix) -> Iterator[tuple[int, int]]:
        """Pairs of places, as often as they are found."""
        sides = []
        for points in (left, right):
            inner, rows, outer = self._placed(points)
            every = np.append(np.arange(len(points)), rows)
            is_inner = np.arange(len(every)) < len(points)
            sides.append((every, np.append(inner, outer), is_inner))
        (a, a_keys, a_inner), (b, b_keys, b_inner) = sides
        for key in np.intersect1d(a_keys, b_keys):
            one, two = np.flatnonzero(a_keys == key), np.flatnonzero(b_keys == key)
            close = self._distances(left[a[one]], right[b[two]]) <= self._threshold
            close &= a_inner[one][:, None] | b_inner[two]
            for i, j in np.argwhere(close):
                yield int(a[one[i]]), int(b[two[j]])
