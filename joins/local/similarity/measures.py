"""Measures: distances of pairs, which decide, and float32 tiles, which find candidates.

A measure reads the compared column of rows once (``values``). ``Comparison`` holds the arriving
rows, and compares them with blocks of stored rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from lsmstate.joins.local.similarity.projection import Choice, Projection
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
#: Pairs of whole vectors that are compared before vectors with fewer components are tried.
_PAIRS_BEFORE: Final = 1 << 23
#: Stored rows that are looked at for that.
_SAMPLED_ROWS: Final = 256
#: They are given up if they leave so many times more than the sample said, and one in a thousand.
_MORE_LEFT: Final = 8


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
    as_bytes: Callable[[Projection | None], ByteRows | None]
    _bytes: dict[Projection | None, ByteRows | None] = field(default_factory=dict)

    def bytes_by(self, projection: Projection | None) -> ByteRows | None:
        """The rows as 8-bit numbers, made when they are first needed; None: they have none."""
        if projection not in self._bytes:
            self._bytes[projection] = self.as_bytes(projection)
        return self._bytes[projection]


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
        self._choice: Choice | None = None
        self._stored: Matrix | None = None
        #: Pairs that tiles of bytes compared since the last choice, and those that were left.
        self.pairs = self.left = 0
        self._pairs_before = _PAIRS_BEFORE

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
        self._stored = stored[-_SAMPLED_ROWS:]

        def as_bytes(projection: Projection | None) -> ByteRows | None:
            if projection is None:
                return byte_rows(stored, self._least)
            least = self._least
            return byte_rows(projection(stored), least and least - 4 * projection.loss)

        return Ready(
            np.ascontiguousarray(stored, np.float32),
            np.nextafter(bounds.astype(np.float32), np.float32(-np.inf)),
            as_bytes,
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
        if self._metric != "l2":
            queries = directions(queries)
        self._choose(queries)
        projection = None if self._choice is None else self._choice.projection
        short = queries if projection is None else projection(queries)
        most: float | None = None
        if self._metric == "l2":
            loss = 0.0 if projection is None else projection.loss
            most = self._widened(float(lengths.max()), loss)
        return _Either(self, projection, ByteVectorPanels.of(short, most), found)

    def _widened(self, longest: float, loss: float) -> float:
        """The threshold of l2 for vectors by a projection. A close pair's product is at least half
        of (both squares less that of the threshold), and is off by ``loss`` times both squares."""
        most = self._threshold
        return float(np.sqrt(most**2 + 5 * loss * (longest**2 + (longest + most) ** 2)))

    def _choose(self, queries: Matrix) -> None:
        """Try vectors of fewer components once many pairs were compared, and give them up where
        they leave many more pairs than they did in the sample."""
        if self._choice is not None:
            usual = max(_MORE_LEFT * self._choice.left, 1e-3)
            if self.pairs > _PAIRS_BEFORE and self.left > usual * self.pairs:
                self._choice = None
                self._pairs_before *= _MORE_LEFT
        elif self.pairs >= self._pairs_before and self._stored is not None:
            self._choice = Choice.of(queries, self._stored, self._is_left)
            self._pairs_before *= 1 if self._choice is not None else _MORE_LEFT
        else:
            return
        self.pairs = self.left = 0

    def _is_left(self, queries: Matrix, rows: Matrix, loss: float) -> npt.NDArray[np.bool_]:
        """Of vectors by a projection, which pairs may be close. Bytes leave a few more."""
        products = queries.astype(np.float64) @ rows.T.astype(np.float64)
        squares = exact.squared_norms(queries)[:, None], exact.squared_norms(rows)
        if self._least is not None:
            return np.asarray(products >= (self._least - 4 * loss) * np.sqrt(squares[1]))
        most = self._widened(float(np.sqrt(squares[0].max(initial=0.0))), loss)
        return np.asarray(2 * products >= squares[0] + squares[1] - most**2)


class _Either:
    """Tiles of bytes, or those of float32 for rows that are none."""

    def __init__(
        self,
        measure: VectorMeasure,
        projection: Projection | None,
        of_bytes: ByteVectorPanels | None,
        others: "VectorPanels",
    ) -> None:
        self._measure = measure
        self._projection = projection
        self._of_bytes = of_bytes
        self._others = others

    def candidates(
        self, stored: Ready, part: slice, first: int, last: int
    ) -> Iterator[tuple[Places, Places]]:
        """Pairs that may be close."""
        rows = None if self._of_bytes is None else stored.bytes_by(self._projection)
        if self._of_bytes is None or rows is None:
            yield from self._others.candidates(stored, part, first, last)
            return
        self._measure.pairs += (last - first) * (part.stop - part.start)
        for queries, places in self._of_bytes.candidates(rows, part, first, last):
            self._measure.left += len(queries)
            yield queries, places


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
