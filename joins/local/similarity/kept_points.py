"""KeptPoints: the stored rows of few dimensions in memory, with their points in trees of boxes.

A batch then reads no row from the store: most of its time would be that of finding, reading and
decoding ranges of rows. Rows that are stored later are added. Rows that came before are read once,
as soon as enough rows looked for partners. Without room for all rows of a stream, none are kept,
and the store is asked again.

Equal columns are one more dimension, in which different keys lie further apart than any reach.

Sets of added rows are merged: four of a level become one of the next level (the logarithmic method:
Bentley and Saxe, "Decomposable Searching Problems", 1980).
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.distances import near_points
from lsmstate.cython_ext.distances.near_points import NearPairs, PointTree
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.time_checks import microseconds
from lsmstate.joins.local.similarity.homes import GRID_DIMENSIONS
from lsmstate.joins.local.similarity.measures import STEP_PAIRS, Measure, Places
from lsmstate.joins.local.similarity.spaces import VectorSpace
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import ARRIVAL, SimilaritySpec
from lsmstate.process.kept_memory import KeptMemory
from lsmstate.schema.arrow_sizes import lies_in, row_sizes
from lsmstate.store import MultimapStore

Numbers = npt.NDArray[np.int64]

#: Most components of a point: boxes of more leave too many pairs.
MOST_WIDTH: Final = 16
#: Rows are read once so many times the rows that looked for partners are all that are stored.
WORTH: Final = 32
#: Most keys: float32 tells the numbers of more of them apart less well.
MOST_KEYS: Final = 1 << 16
#: Keys lie at least so far apart, in parts of how far points lie from the origin.
_LEAST_APART: Final = 1e-4
#: What a key takes in a dictionary, about.
_KEY_BYTES: Final = 200
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
    values: Matrix
    """What the measure compares: a view of a column, or a copy in another type."""
    sizes: Numbers
    """The bytes of each row."""
    last: int
    """The greatest arrival number."""
    times: Numbers
    """The event times; none where rows are kept for ever."""
    keys: Numbers
    """The numbers of the rows' equal columns; none where there are no such columns."""
    tree: PointTree
    number: int

    @cached_property
    def width(self) -> int | None:
        """The bytes of each row, if all have the same."""
        return common_size(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        arrays = self.sizes.nbytes + self.times.nbytes + self.keys.nbytes
        own = 0 if lies_in(self.rows, self.values) else self.values.nbytes
        return int(self.rows.nbytes + arrays + self.tree.nbytes + own)


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
    return spec.algorithm in ("auto", "grid") and 1 <= dimension <= MOST_WIDTH


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
        self._horizon_us = -(1 << 62)
        self._numbers = _KeyNumbers(spec.key_schema) if len(spec.key_schema) else None
        #: Between the keys of neighbouring numbers.
        self._apart = 2 * space.reach or 1.0  # until points come

    def begin(self) -> None:
        """Nothing is stored yet: keep all that comes."""
        self._kept = {name: _Kept(KeptMemory(), []) for name in self._keepable()}

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        kept = list(self._kept)
        for stream in kept:
            self._drop(stream)
        return bool(kept)

    def close(self) -> None:
        """Release the memory of what is kept. Nothing is kept any more."""
        self._is_worth_it = False
        self._kept.clear()
        self._numbers = None

    def _keepable(self) -> list[str]:
        """The streams whose rows may be kept. A row that is over matches no row that comes in time,
        by their times: so it does not matter that the store hides it. Late rows may match it, and
        times that are finer than microseconds are rounded."""
        timing, streams = self._spec.event_time, self._spec.streams
        if timing is None:
            return list(streams)
        units = {
            name: streams[name].field(column).type.unit for name, column in timing.columns.items()
        }
        return [name for name, unit in units.items() if timing.late != "join" and unit != "ns"]

    def forget(self, horizon_us: int) -> None:
        """Nobody needs rows with event times up to this one any more."""
        self._horizon_us = max(self._horizon_us, horizon_us)
        for kept in self._kept.values():
            over = [each for each in kept.levels if self._is_over(each)]
            for level in over:
                kept.levels.remove(level)
            kept.memory.shrink(sum(level.nbytes for level in over))

    def _is_over(self, level: Level) -> bool:
        return len(level.times) > 0 and int(level.times.max()) <= self._horizon_us

    def added(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, sizes: Numbers
    ) -> None:
        """Rows of these sizes were stored, with what the store keeps beside them. ``keys``: their
        equal columns."""
        kept = self._kept.get(stream)
        if kept is None or not rows.num_rows:
            return
        is_whole = False
        try:
            with suppress(MemoryError):  # the store has the rows in any case
                # A copy: whoever made the batch may use its memory again.
                rows = (
                    Gatherer([rows.schema], rows.schema)
                    .sources([rows])
                    .gather([np.arange(rows.num_rows)])
                )
                numbers = self._numbered(keys, is_new=True)
                is_whole = self._add(kept, stream, rows, sizes, numbers, 0)
                while is_whole and self._merged(kept, stream):
                    pass
        finally:
            if not is_whole:
                self._drop(stream)

    def near(
        self, stream: str, values: Any, keys: pa.RecordBatch
    ) -> Iterator[tuple[Level, Iterator[tuple[Places, Places]]]] | None:
        """The stored rows of a stream, and pairs of places, of values and of rows, that may be
        close: all that are. None: they are not kept."""
        if not self._is_worth_it or not self._is_kept(stream, len(values)):
            return None
        numbers = self._numbered(keys, is_new=False)
        points = self._points(values, numbers)
        if points is None:
            return None
        return self._near(self._kept[stream].levels, points, numbers)

    def _near(
        self, levels: list[Level], points: PointTree, keys: Numbers
    ) -> Iterator[tuple[Level, Iterator[tuple[Places, Places]]]]:
        for level in list(levels):
            pairs = NearPairs(points, level.tree, self._kind, self._space.reach)
            yield level, _blocks(pairs, keys, level.keys)
            self._compared += pairs.compared
            self._possible += points.count * level.tree.count
        is_wide = points.width > GRID_DIMENSIONS + 1 and self._possible > _ENOUGH_PAIRS
        if is_wide and self._compared > MOST_COMPARED * self._possible:
            self.close()

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
            with suppress(MemoryError):
                kept = self._load(stream)
        if kept is None or kept.memory.is_short:
            self._drop(stream)
            return False
        return True

    def _drop(self, stream: str) -> None:
        if self._numbers is not None and self._numbers.is_full:
            self.close()  # keys only become more
            return
        self._kept.pop(stream, None)
        stored = self._store.stats().counters.get("rows", 0)
        self._looked[stream] = -PATIENCE * stored / WORTH

    def _load(self, stream: str) -> _Kept | None:
        kept = _Kept(KeptMemory(), [])
        read, size = [], 0
        numbers = [np.empty(0, np.int64)]
        for keys, rows in self._stored(stream):
            if not kept.memory.try_grow(rows.nbytes):
                return None
            size += rows.nbytes
            read.append(rows)
            numbers.append(self._numbered(keys, is_new=True))
        if read:
            try:
                rows, own = pa.concat_batches(read), np.concatenate(numbers)
            except pa.ArrowInvalid:  # too many values for a dictionary
                return None
            if not self._add(kept, stream, rows, row_sizes(rows), own, _level_of(rows)):
                return None
        kept.memory.shrink(size)
        self._kept[stream] = kept
        return kept

    def _stored(self, stream: str) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Stored rows with their equal columns."""
        names = self._spec.key_schema.names
        if names:
            for places, rows in self._store.iterate(stream, max_bytes=self._piece_bytes):
                yield places.select(names), rows
        else:
            for rows in self._store.scan(stream, self._piece_bytes):
                yield rows.select([]), rows

    def _numbered(self, keys: pa.RecordBatch, *, is_new: bool) -> Numbers:
        """The numbers of equal columns; none if there are no such columns."""
        return _NONE if self._numbers is None else self._numbers(keys, is_new=is_new)

    def _add(
        self,
        kept: _Kept,
        stream: str,
        rows: pa.RecordBatch,
        sizes: Numbers,
        keys: Numbers,
        number: int,
    ) -> bool:
        """Add rows; return False if there is no room."""
        values = self._measure.values(rows.column(self._spec.columns[stream]))
        tree = self._points(values, keys)
        if tree is None:
            return False
        last = int(rows.column(ARRIVAL).to_numpy(zero_copy_only=False).max())
        level = Level(rows, values, sizes, last, self._times(stream, rows), keys, tree, number)
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
        sizes = np.concatenate([each.sizes for each in last])
        times = np.concatenate([each.times for each in last])
        keys = np.concatenate([each.keys for each in last])
        if len(times) and times.min() <= self._horizon_us:
            left = times > self._horizon_us
            rows, sizes = rows.filter(pa.array(left)), sizes[left]
            keys = keys[left] if len(keys) else keys
        if not self._add(kept, stream, rows, sizes, keys, last[0].number + 1):
            self._drop(stream)
            return False
        return True

    def _times(self, stream: str, rows: pa.RecordBatch) -> Numbers:
        timing = self._spec.event_time
        if timing is None:
            return _NONE
        return microseconds(rows.column(timing.columns[stream]))

    def _points(self, values: Any, keys: Numbers) -> PointTree | None:
        """Values in a tree, with the numbers of their keys; None: float32 cannot compare them."""
        if self._numbers is not None and self._numbers.is_full:
            return None
        points = np.ascontiguousarray(self._space.points(values))
        if self._origin is None and len(points):
            self._origin = points.mean(axis=0)
            furthest = float(np.abs(points - self._origin).max())
            self._apart = max(self._apart, _LEAST_APART * furthest)
        origin = np.zeros(points.shape[1]) if self._origin is None else self._origin
        if self._numbers is not None:
            points = np.column_stack([points, keys * self._apart])
            origin = np.append(origin, 0.0)
        try:
            return PointTree(points, origin)
        except InvalidArgumentError:  # further than float32 reaches
            return None


def common_size(sizes: Numbers) -> int | None:
    """The size that all rows have; None: they have several."""
    return int(sizes[0]) if len(sizes) and sizes.min() == sizes.max() else None


class _KeyNumbers:
    """Numbers of the keys that came."""

    def __init__(self, schema: pa.Schema) -> None:
        self._codec = KeyCodec(schema)
        self._known: dict[bytes, int] = {}
        self._memory = KeptMemory()
        #: Whether they are too many.
        self.is_full = False

    def __call__(self, keys: pa.RecordBatch, *, is_new: bool) -> Numbers:
        """The number of each key. One that did not come yet is given the next one, or -1."""
        known = self._known
        encoded = [bytes(key or b"") for key in self._codec.encode(keys).to_pylist()]
        if is_new:
            before = len(known)
            found = np.array([known.setdefault(key, len(known)) for key in encoded], np.int64)
            has_room = self._memory.try_grow((len(known) - before) * _KEY_BYTES)
            self.is_full |= not has_room or len(known) > MOST_KEYS
            return found
        return np.array([known.get(key, -1) for key in encoded], np.int64)


_NONE: Final = np.empty(0, np.int64)


def _blocks(
    pairs: NearPairs, keys: Numbers, stored_keys: Numbers
) -> Iterator[tuple[Places, Places]]:
    """Pairs of one key, if there are keys: float32 may not tell all of them apart."""
    while (found := pairs.next(STEP_PAIRS)) is not None:
        if len(keys):
            is_equal = keys[found[0]] == stored_keys[found[1]]
            found = found[0][is_equal], found[1][is_equal]
        if len(found[0]):
            yield found


def _level_of(rows: pa.RecordBatch) -> int:
    """The level of rows that were stored before."""
    return max(1, int(np.log(max(rows.num_rows, 1)) / np.log(TOGETHER)))
