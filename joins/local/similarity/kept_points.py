"""KeptPoints: the stored rows of few dimensions in memory, with their points in trees of boxes.

A batch then reads no row from the store: most of its time would be that of finding, reading and
decoding ranges of rows. Rows that are stored later are added. Rows that came before are read once,
as soon as enough rows looked for partners. Without room for all rows of a stream, none are kept,
and the store is asked again.

Sets of added rows are merged: four of a level become one of the next level (the logarithmic method:
Bentley and Saxe, "Decomposable Searching Problems", 1980).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.distances import near_points
from lsmstate.cython_ext.distances.near_points import NearPairs, PointTree
from lsmstate.joins.local.similarity.homes import GRID_DIMENSIONS
from lsmstate.joins.local.similarity.measures import STEP_PAIRS, Measure, Places
from lsmstate.joins.local.similarity.spaces import VectorSpace
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.store import MultimapStore

Numbers = npt.NDArray[np.int64]

#: Most components of a point: boxes of more leave too many pairs.
MOST_WIDTH: Final = 16
#: Rows are read once so many times the rows that looked for partners are all that are stored.
WORTH: Final = 32
#: After a refusal, so many times as many are to look first.
PATIENCE: Final = 8
#: Sets of rows that are merged.
TOGETHER: Final = 4
#: Most of the pairs that may be compared for boxes to be worth it, once so many were possible.
#: In few dimensions what else there is compares them one by one as well.
MOST_COMPARED: Final = 0.05
_ENOUGH_PAIRS: Final = 1 << 27
_KINDS: Final = {"manhattan": near_points.LENGTHS, "chebyshev": near_points.GREATEST}


@dataclass(frozen=True)
class Level:
    """Some stored rows."""

    rows: pa.RecordBatch
    values: Any
    """What the measure compares."""
    sizes: Numbers
    tree: PointTree
    number: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(self.rows.nbytes + self.sizes.nbytes + self.tree.nbytes)


@dataclass(frozen=True)
class _Kept:
    """The rows of a stream, all of them."""

    memory: KeptMemory
    levels: list[Level]
    """Their numbers do not ascend."""


def can_keep(spec: SimilaritySpec, space: Any, dimension: int | None) -> bool:
    """Whether points of the spec's vectors lie well in boxes."""
    if dimension is None or not isinstance(space, VectorSpace) or spec.metric == "hamming":
        return False
    is_asked = spec.algorithm in ("auto", "grid") and not spec.key_schema
    return is_asked and 1 <= dimension <= MOST_WIDTH


class KeptPoints:
    """The rows of the streams of one join in ``store``, none of which is ever taken back."""

    def __init__(
        self,
        spec: SimilaritySpec,
        store: MultimapStore,
        space: VectorSpace,
        measure: Measure,
        piece_bytes: int,
    ) -> None:
        """Keep nothing yet, unless the store is empty."""
        self._spec = spec
        self._store = store
        self._space = space
        self._measure = measure
        self._piece_bytes = piece_bytes
        self._kind = _KINDS.get(spec.metric, near_points.SQUARES)
        self._origin: Matrix | None = None
        self._kept: dict[str, _Kept] = {}
        self._looked = dict.fromkeys(spec.streams, 0.0)
        self._possible = 0
        self._compared = self._taken = 0
        self._is_worth_it = True

    def begin(self) -> None:
        """Nothing is stored yet: keep all that comes."""
        self._kept = {name: _Kept(KeptMemory(), []) for name in self._keepable()}

    def _keepable(self) -> list[str]:
        streams = self._store.streams
        return [name for name in self._spec.streams if streams[name].expiry is None]

    def added(self, stream: str, rows: pa.RecordBatch) -> None:
        """Rows were stored, with what the store keeps beside them."""
        kept = self._kept.get(stream)
        if kept is None or not rows.num_rows:
            return
        if not self._add(kept, stream, rows, 0):
            self._drop(stream)
            return
        while self._merged(kept, stream):
            pass

    def near(
        self, stream: str, values: Any
    ) -> Iterator[tuple[Level, Iterator[tuple[Places, Places]]]] | None:
        """The stored rows of a stream, and pairs of places, of values and of rows, that may be
        close: all that are. None: they are not kept."""
        if not self._is_worth_it or not self._is_kept(stream, len(values)):
            return None
        points = self._points(values)
        if points is None:
            return None
        return self._near(self._kept[stream].levels, points)

    def _near(
        self, levels: list[Level], points: PointTree
    ) -> Iterator[tuple[Level, Iterator[tuple[Places, Places]]]]:
        for level in list(levels):
            pairs = NearPairs(points, level.tree, self._kind, self._space.reach)
            yield level, _blocks(pairs)
            self._compared += pairs.compared
            self._possible += points.count * level.tree.count
        is_wide = points.width > GRID_DIMENSIONS and self._possible > _ENOUGH_PAIRS
        if is_wide and self._compared > MOST_COMPARED * self._possible:
            self._is_worth_it = False
            self._kept.clear()

    def taken(self) -> int:
        """Pairs that were compared since the last call."""
        found, self._taken = self._compared - self._taken, self._compared
        return found

    def _is_kept(self, stream: str, looking: int) -> bool:
        kept = self._kept.get(stream)
        if kept is None:
            self._looked[stream] += looking
            stored = self._store.stats().counters.get("rows", np.inf)
            if stream not in self._keepable() or WORTH * self._looked[stream] < stored:
                return False
            kept = self._load(stream)
        if kept is None or kept.memory.is_short:
            self._drop(stream)
            return False
        return True

    def _drop(self, stream: str) -> None:
        self._kept.pop(stream, None)
        stored = self._store.stats().counters.get("rows", 0)
        self._looked[stream] = -PATIENCE * stored / WORTH

    def _load(self, stream: str) -> _Kept | None:
        kept = _Kept(KeptMemory(), [])
        read, size = [], 0
        for rows in self._store.scan(stream, self._piece_bytes):
            if not kept.memory.try_grow(rows.nbytes):
                return None
            size += rows.nbytes
            read.append(rows)
        if read and not self._add(kept, stream, pa.concat_batches(read), _level_of(read)):
            return None
        kept.memory.shrink(size)
        self._kept[stream] = kept
        return kept

    def _add(self, kept: _Kept, stream: str, rows: pa.RecordBatch, number: int) -> bool:
        """Add rows; return False if there is no room."""
        values = self._measure.values(rows.column(self._spec.columns[stream]))
        tree = self._points(values)
        if tree is None:
            return False
        level = Level(rows, values, row_sizes(rows), tree, number)
        if not kept.memory.try_grow(level.nbytes):
            return False
        kept.levels.append(level)
        return True

    def _merged(self, kept: _Kept, stream: str) -> bool:
        """Merge the last levels, if they are enough of one number."""
        last = kept.levels[-TOGETHER:]
        if len(last) < TOGETHER or last[0].number != last[-1].number:
            return False
        size = sum(each.nbytes for each in last)
        if not kept.memory.try_grow(2 * size):
            return False
        try:
            rows = pa.concat_batches([each.rows for each in last])
        except pa.ArrowInvalid:  # too many values for a dictionary
            kept.memory.shrink(2 * size)
            return False
        del kept.levels[-TOGETHER:]
        kept.memory.shrink(3 * size)
        if not self._add(kept, stream, rows, last[0].number + 1):
            self._drop(stream)
            return False
        return True

    def _points(self, values: Any) -> PointTree | None:
        """Values in a tree; None: float32 cannot compare them."""
        points = np.ascontiguousarray(self._space.points(values))
        if self._origin is None and len(points):
            self._origin = points.mean(axis=0)
        origin = np.zeros(points.shape[1]) if self._origin is None else self._origin
        if len(points) and not np.abs(points - origin).max() <= near_points.FURTHEST:
            return None
        return PointTree(points, origin)


def _blocks(pairs: NearPairs) -> Iterator[tuple[Places, Places]]:
    while (found := pairs.next(STEP_PAIRS)) is not None:
        if len(found[0]):
            yield found


def _level_of(read: list[pa.RecordBatch]) -> int:
    """The level of rows that were stored before."""
    rows = sum(each.num_rows for each in read)
    return max(1, int(np.log(max(rows, 1)) / np.log(TOGETHER)))
