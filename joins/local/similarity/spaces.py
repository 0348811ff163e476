"""Spaces: vectors as points, whose distances obey the triangle inequality.

The cosine distance does not, and angles are costly. Both become chords of the unit sphere, and so
do places on the earth.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.distances import exact
from lsmstate.joins.local.similarity.measures import chord, on_sphere
from lsmstate.joins.local.similarity.vectors import Matrix, directions
from lsmstate.joins.specs.similarity import VECTOR_METRICS, SimilaritySpec

#: Thresholds are widened by this part, which is more than rounding loses.
_ROOM: Final = 1e-9
_CHORDS: Final = ("cosine", "angular", "haversine")


class Space(Protocol):
    """Points, and distances that obey the triangle inequality."""

    @property
    def reach(self) -> float:
        """How far apart in this space the points of a pair are at most."""
        ...

    @property
    def sure(self) -> float:
        """Points at most so far apart in this space are a pair; negative: it is known of none."""
        ...

    def points(self, values: Matrix) -> Matrix:
        """Vectors as points, of float64."""
        ...

    def distances(self, points: Matrix, pivots: Matrix) -> npt.NDArray[np.float64]:
        """Of each point from each pivot, to within ``slack``."""
        ...

    def slack(self, longest: float, width: int) -> float:
        """How far ``distances`` may be off, for points of this length at most. To be asked after
        them."""
        ...


@dataclass(frozen=True, slots=True)
class VectorSpace:
    """Points of a metric of vectors; made by ``space_of``. See ``Space``."""

    metric: str
    reach: float
    sure: float

    @property
    def is_euclidean(self) -> bool:
        """Whether distances are lengths of differences."""
        return self.metric == "l2" or self.metric in _CHORDS

    def points(self, values: Matrix) -> Matrix:
        """Vectors as points, of float64."""
        if self.metric == "haversine":
            return on_sphere(values)
        return directions(values) if self.metric in _CHORDS else values.astype(np.float64)

    def distances(self, points: Matrix, pivots: Matrix) -> npt.NDArray[np.float64]:
        """Of each point from each pivot, to within ``slack``."""
        points, pivots = np.ascontiguousarray(points), np.ascontiguousarray(pivots)
        if self.is_euclidean:
            squares = exact.squared_norms(points)[:, None] + exact.squared_norms(pivots)
            if squares.max(initial=0.0) < 1e300:
                return np.asarray(np.sqrt(np.maximum(squares - 2 * (points @ pivots.T), 0)))
        queries = np.repeat(np.arange(len(points), dtype=np.int32), len(pivots))
        places = np.tile(np.arange(len(pivots), dtype=np.int32), len(points))
        code = 0 if self.is_euclidean else VECTOR_METRICS.index(self.metric)
        return exact.distances(code, points, queries, pivots, places).reshape(-1, len(pivots))

    def slack(self, longest: float, width: int) -> float:
        """How far ``distances`` may be off, for points of this length at most: the square root of
        what is lost in a square."""
        return float(np.sqrt((width + 8) * 2.0**-50)) * longest


def space_of(spec: SimilaritySpec) -> VectorSpace | None:
    """The space of a spec's metric; None: it is none of vectors that is known here."""
    threshold = spec.threshold
    if spec.metric == "haversine":
        reach = chord(threshold)
        return VectorSpace(spec.metric, reach, reach * (1 - 4 * _ROOM) - 4e-12)
    if spec.metric == "cosine":
        length = float(np.sqrt(2 * min(threshold, 2.0)))
    elif spec.metric == "angular":
        length = float(2 * np.sin(np.pi * min(threshold, 1.0) / 2))
    else:
        sure = threshold * (1 - _ROOM)
        is_one = spec.metric in VECTOR_METRICS
        return VectorSpace(spec.metric, threshold * (1 + _ROOM), sure) if is_one else None
    return VectorSpace(spec.metric, length * (1 + _ROOM) + 1e-7, length * (1 - _ROOM) - 1e-7)


def longest(points: Matrix) -> float:
    """The length of the longest point, by all metrics' measures at most this."""
    found: Any = np.abs(points).sum(axis=1).max(initial=0.0)
    return float(found)
