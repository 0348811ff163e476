"""Measures: distances of pairs, which decide, and float32 tiles, which find candidates.

A measure reads the compared column of rows once (``values``). ``Comparison`` holds the arriving
rows, and compares them with blocks of stored rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.distances import exact, tiles
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.distinct import distinct
from lsmstate.joins.local.similarity.byte_panels import (
    LEAST_QUERIES,
    LEAST_WIDTH,
    ByteRows,
    ByteVectorPanels,
    byte_rows,
)
from lsmstate.joins.local.similarity.function_metric import FunctionMetric
from lsmstate.joins.local.similarity.vectors import Matrix, directions, matrix, vector_type
from lsmstate.joins.specs.similarity import (
    JACCARD,
    LEVENSHTEIN,
    VECTOR_METRICS,
    SimilaritySpec,
)

Places = npt.NDArray[np.int32]
Distances = npt.NDArray[np.float64]

_ANGLES: Final = ("cosine", "angular")
#: Most pairs that are looked at in one step.
STEP_PAIRS: Final = 1 << 18
#: Most stored rows in one call of the tiles.
_MOST_ROWS: Final = 512
#: Components of pairs from which on tiles are the best way.
_LEAST_COMPONENTS: Final = 4096
#: Unit of rounding in float32, with room for the rounding of the bounds themselves.
_UNIT: Final = 1.1 * 2.0**-24
#: Vectors beyond it are compared in float64 alone: the squares of float32 end at 3e38.
_LONGEST: Final = 1e15
#: What products that float32 cannot hold lose at most, per component.
_TINY: Final = 1e-37


class Measure(Protocol):
    """The distances of one metric."""

    #: From so many pairs on, tiles are the best way; None: there are none.
    least_pairs: int | None

    def values(self, column: pa.Array) -> Any:
        """The compared column, without nulls, as what ``distances`` takes."""
        ...

    def distances(self, a: Any, a_places: Places, b: Any, b_places: Places) -> Distances:
        """The distance of each pair of places."""
        ...

    def ready(self, stored: Any) -> "Ready | None":
        """Stored rows, ready for tiles; None: they must not be compared so."""
        ...

    def panels(self, queries: Any) -> "Panels | None":
        """What finds candidates for the queries; None: all pairs are candidates."""
        ...


@dataclass(eq=False)
class Ready:
    """Stored rows, ready for tiles."""

    vectors: npt.NDArray[np.float32]
    limits: npt.NDArray[np.float32]
    """What their scores must exceed beside the bounds of queries."""
    as_bytes: Callable[[], ByteRows | None]

    @cached_property
    def bytes(self) -> ByteRows | None:
        """The rows as 8-bit numbers, made when they are first needed; None: they have none."""
        return self.as_bytes()


class Panels(Protocol):
    """Arriving rows, ready to be compared with blocks of stored ones."""

    def candidates(
        self, stored: "Ready", part: slice, first: int, last: int
    ) -> Iterator[tuple[Places, Places]]:
        """Pairs of places, of queries and of stored rows, that may be close: all that are, of the
        queries from ``first`` to ``last`` and the rows in ``part``."""
        ...


def measure_of(spec: SimilaritySpec, dimension: int | None) -> Measure:
    """The measure of a spec, for vectors of a dimension."""
    if spec.metric == JACCARD:
        return SetMeasure()
    if spec.metric == LEVENSHTEIN:
        return TextMeasure(spec.threshold)
    width = 0 if dimension is None else dimension
    if spec.metric in VECTOR_METRICS:
        return VectorMeasure(spec, width)
    return UserMeasure(spec, width)


class VectorMeasure:
    """Metrics of vectors."""

    def __init__(self, spec: SimilaritySpec, dimension: int) -> None:
        self._metric = spec.metric
        self._code = VECTOR_METRICS.index(spec.metric)
        self._threshold = spec.threshold
        self._dimension = dimension
        self._kind = vector_type(spec)
        self.least_pairs: int | None = max(64, _LEAST_COMPONENTS // max(1, dimension))

    def values(self, column: pa.Array) -> Matrix:
        """A matrix."""
        return matrix(column, self._dimension, self._kind)

    def distances(self, a: Matrix, a_places: Places, b: Matrix, b_places: Places) -> Distances:
        """In float64, summed in a fixed order."""
        return exact.distances(self._code, a, a_places, b, b_places)

    def ready(self, stored: Matrix) -> Ready | None:
        """As float32, unless a row is too long for it."""
        if self._metric == "haversine":
            stored = on_sphere(stored)
        squares = exact.squared_norms(stored)
        if squares.max(initial=0.0) > _LONGEST**2:
            return None
        bounds = np.zeros(len(stored))
        loss = (stored.shape[1] + 16) * _UNIT
        if self._metric in ("l2", "haversine"):
            bounds = squares * (0.5 - loss)
        elif self._metric in _ANGLES:
            bounds = np.sqrt(squares) * (least_cosine(self._metric, self._threshold) - 2 * loss)
        return Ready(
            np.ascontiguousarray(stored, np.float32),
            np.nextafter(bounds.astype(np.float32), np.float32(-np.inf)),
            lambda: byte_rows(stored, self._least),
        )

    @property
    def _least(self) -> float | None:
        """The least cosine of a pair; None: distances are no angles."""
        is_angle = self._metric in _ANGLES
        return least_cosine(self._metric, self._threshold) if is_angle else None

    def panels(self, queries: Matrix) -> "Panels | None":
        """Tiles of float32, unless a query is too long for them."""
        if self._metric == "haversine":
            points = on_sphere(queries)
            return VectorPanels("l2", points, np.ones(len(points)), chord(self._threshold))
        lengths = np.sqrt(exact.squared_norms(queries))
        if not len(queries) or lengths.max() > _LONGEST:
            return None
        found = VectorPanels(self._metric, queries, lengths, self._threshold)
        is_wide = queries.shape[1] >= LEAST_WIDTH and len(queries) >= LEAST_QUERIES
        if not is_wide or self._metric not in ("l2", *_ANGLES):
            return found
        if self._metric == "l2":
            return _Either(ByteVectorPanels.of(queries, self._threshold), found)
        return _Either(ByteVectorPanels.of(directions(queries), None), found)


class _Either:
    """Tiles of bytes, or those of float32 for rows that are none."""

    def __init__(self, of_bytes: ByteVectorPanels | None, others: "VectorPanels") -> None:
        self._of_bytes = of_bytes
        self._others = others

    def candidates(
        self, stored: Ready, part: slice, first: int, last: int
    ) -> Iterator[tuple[Places, Places]]:
        """Pairs that may be close."""
        if self._of_bytes is None or stored.bytes is None:
            return self._others.candidates(stored, part, first, last)
        return self._of_bytes.candidates(stored.bytes, part, first, last)


def least_cosine(metric: str, threshold: float) -> float:
    """The least cosine of a pair, with room for rounding."""
    angle = 1 - threshold if metric == "cosine" else np.cos(np.pi * min(threshold, 1.0))
    return max(-1.0, float(angle) - 1e-12)


class VectorPanels:
    """Queries in tiles, with bounds that are widened by what float32 may lose, as ``ready`` does.

    With u the unit of rounding and d the dimension, a sum of d products is off by at most
    (d + 1)u times the sum of their absolute values (Higham, *Accuracy and Stability of Numerical
    Algorithms*, section 3.1), which is at most the product of the lengths. Rounding the components
    adds 2u times that. The bounds below use d + 16.
    """

    def __init__(self, metric: str, queries: Matrix, lengths: Distances, threshold: float) -> None:
        count, width = queries.shape
        loss = (width + 16) * _UNIT
        tiny = width * _TINY
        points = queries
        if metric == "l2":
            kind = tiles.PRODUCT
            squares, most = lengths * lengths, threshold * threshold
            bounds = (squares - most) / 2 - loss * (squares + most) - tiny
        elif metric in _ANGLES:
            kind = tiles.PRODUCT
            points = directions(queries)
            bounds = np.full(count, -tiny)
        elif metric == "hamming":
            kind = tiles.COUNT
            bounds = np.full(count, -threshold - 0.5)
        else:
            kind = tiles.SUM if metric == "manhattan" else tiles.GREATEST
            # A close row is no further from zero than the query and the threshold together.
            reach = np.abs(queries).sum(axis=1, dtype=np.float64) + threshold
            bounds = -threshold - loss * (threshold + reach) - tiny
        rows = min(_MOST_ROWS, max(1, STEP_PAIRS // max(1, count)))
        with np.errstate(over="ignore"):
            self._panels = tiles.Panels(
                kind,
                np.ascontiguousarray(points, np.float32),
                np.nextafter(bounds.astype(np.float32), np.float32(-np.inf)),
                rows,
            )
        self._rows = rows

    def candidates(
        self, stored: Ready, part: slice, first: int, last: int
    ) -> Iterator[tuple[Places, Places]]:
        """Pairs that may be close."""
        for begin in range(part.start, part.stop, self._rows):
            some = slice(begin, min(part.stop, begin + self._rows))
            queries, places = self._panels.candidates(
                stored.vectors[some], stored.limits[some], first, last
            )
            if len(queries):
                yield queries.copy(), places + np.int32(begin)


def on_sphere(points: Matrix) -> Matrix:
    """[longitude, latitude] in degrees as points of the unit sphere."""
    angles = np.radians(points.astype(np.float64))
    along, up = angles[:, 0], angles[:, 1]
    flat = np.cos(up)
    return np.column_stack([flat * np.cos(along), flat * np.sin(along), np.sin(up)])


def chord(metres: float) -> float:
    """The chord, on the unit sphere, of points so far apart, with room for rounding."""
    half = metres / (2 * exact.EARTH_RADIUS)
    found = 2.0 if half >= np.pi / 2 else 2 * float(np.sin(half))
    return found * (1 + 1e-9) + 1e-12


class SetMeasure:
    """Jaccard distance: the part of the union that is not shared. Of two empty sets it is 0."""

    least_pairs: int | None = None

    def values(self, column: pa.Array) -> pa.Array:
        """The lists as they are."""
        return column

    def ready(self, stored: Any) -> None:
        """There are no tiles."""
        return

    def panels(self, queries: pa.Array) -> None:
        """All pairs are candidates."""
        return

    def distances(self, a: pa.Array, a_places: Places, b: pa.Array, b_places: Places) -> Distances:
        """By the members in common."""
        a, a_places = _used(a, a_places)
        b, b_places = _used(b, b_places)
        (one, one_ends), (two, two_ends) = _codes(a, b)
        shared = exact.common(one, one_ends, a_places, two, two_ends, b_places)
        sizes = np.diff(one_ends)[a_places] + np.diff(two_ends)[b_places]
        union = sizes - shared
        return np.where(union == 0, 0.0, (union - shared) / np.maximum(union, 1))


def _used(lists: pa.Array, places: Places) -> tuple[pa.Array, Places]:
    """The lists without those that nothing names, if these are many."""
    used, back = np.unique(places, return_inverse=True)
    if 2 * len(used) > len(lists):
        return lists, places
    return lists.take(pa.array(used)), back.astype(np.int32)


def _codes(a: pa.Array, b: pa.Array) -> list[tuple[Places, Places]]:
    """Sets as ascending numbers of their members, and where each ends."""
    found = []
    members = pa.chunked_array([a.flatten(), b.flatten()]).combine_chunks()
    codes = members.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    first = 0
    for lists in (a, b):
        lengths = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64)
        owners = np.repeat(np.arange(len(lists)), lengths)
        own = codes[first : first + len(owners)]
        first += len(owners)
        owners, own = np.divmod(distinct(owners * (len(members) + 1) + own), len(members) + 1)
        ends = np.searchsorted(owners, np.arange(len(lists) + 1)).astype(np.int32)
        found.append((own.astype(np.int32), ends))
    return found


class TextMeasure:
    """Levenshtein distance of texts, by rapidfuzz."""

    least_pairs: int | None = None

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        try:
            from rapidfuzz.distance import Levenshtein
            from rapidfuzz.process import cpdist
        except ImportError as error:
            raise InvalidArgumentError(
                "metric='levenshtein' needs the package rapidfuzz; run: pip install "
                "'lsmstate[similarity]'"
            ) from error
        self._scorer, self._cpdist = Levenshtein.distance, cpdist

    def values(self, column: pa.Array) -> npt.NDArray[Any]:
        """Texts as Python's."""
        return np.array(column.to_pylist(), dtype=object)

    def ready(self, stored: Any) -> None:
        """There are no tiles."""
        return

    def panels(self, queries: npt.NDArray[Any]) -> None:
        """All pairs are candidates."""
        return

    def distances(
        self, a: npt.NDArray[Any], a_places: Places, b: npt.NDArray[Any], b_places: Places
    ) -> Distances:
        """In edits of characters. What is beyond the threshold is only known to be."""
        most = int(min(self._threshold, 2**31))
        found = self._cpdist(
            a[a_places], b[b_places], scorer=self._scorer, score_cutoff=most, dtype=np.int64
        )
        return np.asarray(found, np.float64)


class UserMeasure:
    """A function of the user's: two matrices of equal shape in, the distance of each row out."""

    least_pairs: int | None = None

    def __init__(self, spec: SimilaritySpec, dimension: int) -> None:
        self.function = FunctionMetric(spec.metric)
        self._dimension = dimension

    def values(self, column: pa.Array) -> Matrix:
        """A matrix of float64."""
        return matrix(column, self._dimension, np.dtype(np.float64))

    def ready(self, stored: Any) -> None:
        """There are no tiles."""
        return

    def panels(self, queries: Matrix) -> None:
        """All pairs are candidates."""
        return

    def distances(self, a: Matrix, a_places: Places, b: Matrix, b_places: Places) -> Distances:
        """What the function says."""
        return self.function.distances(a, a_places, b, b_places)


def _all_pairs(queries: int, places: Places) -> tuple[Places, Places]:
    return np.repeat(np.arange(queries, dtype=np.int32), len(places)), np.tile(places, queries)


def _steps(places: npt.NDArray[Any], queries: int) -> Iterator[npt.NDArray[Any]]:
    step = max(1, STEP_PAIRS // max(1, queries))
    for first in range(0, len(places), step):
        yield places[first : first + step]


def all_candidates(queries: int, stored: int) -> Iterator[tuple[Places, Places]]:
    """All pairs, in steps."""
    for some in _steps(np.arange(stored, dtype=np.int32), queries):
        yield _all_pairs(queries, some)
