"""Where a row is stored, and where its partners may lie: by arrival, in a grid, by pivots.

Every row is stored once, under (equal columns, home, order). An index says of a row what
its place is, and which places its partners may have.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.similarity.spaces import Space, space_of
from lsmstate.joins.local.similarity.stretches import Groups, Numbers, Orders, Stretches
from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.specs.similarity import HOME, ORDER, SimilaritySpec
from lsmstate.store import MultimapStore, Mutation, RangeBounds

Homes = npt.NDArray[np.int64]

#: Dimensions in which a strip has few enough neighbours.
GRID_DIMENSIONS: Final = 3
#: Strips are wider than the threshold by this part, which is more than rounding moves a point.
_ROOM: Final = 2.0**-10
#: Strips beyond this one are one.
_LAST_CELL: Final = float(1 << 40)
_MIXERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class Index(Protocol):
    """Places of rows, and what may match."""

    @property
    def compared(self) -> int:
        """Distances that were computed to find places."""
        ...

    @property
    def pairs(self) -> int:
        """Pairs that were compared to find candidates."""
        ...

    def homes(self, values: Any, arrivals: Numbers, times: Numbers | None) -> tuple[Homes, Orders]:
        """Where rows are to be stored, with the numbers of their arrival and their event times:
        under a home, and in which order there."""
        ...

    def near(
        self,
        stream: str,
        values: Any,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """Stored rows of a stream that may match rows with these values and equal columns.
        ``arrivals``: their numbers; None: they are not stored here."""
        ...

    def added(
        self,
        stream: str,
        values: Any,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        homes: Homes,
        part: slice,
    ) -> Sequence[Mutation]:
        """What is stored together with a part of the rows that ``homes`` placed last. ``rows``:
        all of them as they are stored."""
        ...

    def forget(self, horizon_us: int) -> None:
        """Nobody needs rows with event times up to this one any more."""
        ...

    def writes(self) -> Sequence[Mutation]:
        """What ``homes`` changed of what the index must remember, once."""
        ...


def can_use_grid(spec: SimilaritySpec, dimension: int | None) -> bool:
    """Whether rows lie in a grid."""
    if spec.algorithm not in ("auto", "grid") or dimension is None or spec.metric == "hamming":
        return False
    return 1 <= dimension <= GRID_DIMENSIONS and space_of(spec) is not None


class OnePlace:
    """The part of an index whose rows lie in one place each."""

    compared: int = 0
    pairs: int = 0

    def forget(self, horizon_us: int) -> None:
        """Nothing is known of rows that are forgotten."""

    def added(
        self,
        stream: str,
        values: Any,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        homes: Homes,
        part: slice,
    ) -> Sequence[Mutation]:
        """Nothing leads to a row but its place."""
        return ()

    def writes(self) -> Sequence[Mutation]:
        """Nothing is remembered."""
        return ()


class Blocks(OnePlace):
    """All rows of equal columns in one home, as they arrive."""

    def __init__(self, spec: SimilaritySpec, store: MultimapStore) -> None:
        self._store = store

    def homes(self, values: Any, arrivals: Numbers, times: Numbers | None) -> tuple[Homes, Orders]:
        """One home."""
        return np.zeros(len(arrivals), np.int64), np.zeros(len(arrivals))

    def near(
        self,
        stream: str,
        values: Any,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """All rows with the same equal columns."""
        if not keys.num_columns:
            yield Groups.one(len(values)), self._all(stream, max_bytes)
            return
        members, starts = grouped(keys)
        equal = keys.take(pa.array(members[starts[:-1]]))
        bounds = RangeBounds(equal=equal)
        yield Groups(members, starts), ranged(self._store, stream, bounds, max_bytes)

    def _all(self, stream: str, max_bytes: int) -> Iterator[Stretches]:
        for rows in self._store.scan(stream, max_bytes):
            ends = np.array([rows.num_rows])
            yield Stretches(rows, np.zeros(1, np.int64), np.zeros(1, np.int64), ends)


class Grid(OnePlace):
    """Strips a little wider than the threshold, each ordered by the last coordinate. Partners lie
    in a strip or beside it, and no further along it than the threshold."""

    def __init__(self, spec: SimilaritySpec, store: MultimapStore, space: Space) -> None:
        self._store = store
        self._space = space
        self._reach = space.reach * (1 + _ROOM)
        self._width = self._reach or 1.0

    def homes(
        self, values: Matrix, arrivals: Numbers, times: Numbers | None
    ) -> tuple[Homes, Orders]:
        """The strip of each vector, and where it lies along it."""
        points = self._space.points(values)
        return _numbered(self._strips(points)), points[:, -1].copy()

    def _strips(self, points: Matrix) -> npt.NDArray[np.float64]:
        with np.errstate(over="ignore"):
            return np.clip(np.floor(points[:, :-1] / self._width), -_LAST_CELL, _LAST_CELL)

    def near(
        self,
        stream: str,
        values: Matrix,
        keys: pa.RecordBatch,
        max_bytes: int,
        arrivals: Numbers | None,
    ) -> Iterator[tuple[Groups, Iterator[Stretches]]]:
        """The stretches of the same strip and of all beside it."""
        points = self._space.points(values)
        strips = self._strips(points)
        axes = strips.shape[1]
        steps = np.array(list(product((-1, 0, 1), repeat=axes))).reshape(3**axes, axes)
        around = _numbered((strips[:, None] + steps).reshape(len(strips) * len(steps), axes))
        rows = np.repeat(np.arange(len(values)), len(steps))
        if keys.num_columns:
            keys = keys.take(pa.array(rows))
        along = points[rows, -1]
        with np.errstate(over="ignore"):
            low = np.nextafter(along - self._reach, -np.inf)
            high = np.nextafter(along + self._reach, np.inf)
        equal = with_home(keys, around)
        bounds = RangeBounds(equal=equal, low=pa.array(low), high=pa.array(high))
        yield Groups.single(rows), ranged(self._store, stream, bounds, max_bytes)


def _numbered(strips: npt.NDArray[np.float64]) -> Homes:
    """Strips as numbers. Two strips may have one number: then both are looked into."""
    found = np.zeros(len(strips), np.uint64)
    for column, mixer in zip(strips.T, _MIXERS, strict=False):
        found ^= column.astype(np.int64).astype(np.uint64) * np.uint64(mixer)
        found ^= found >> np.uint64(29)
    return found.astype(np.int64)


def placed(schema: pa.Schema, keys: pa.RecordBatch, homes: Homes, orders: Orders) -> pa.RecordBatch:
    """The keys of rows in the store."""
    columns = [*keys.columns, pa.array(homes, pa.int64()), pa.array(orders, pa.float64())]
    assert schema.names[-2:] == [HOME, ORDER]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_home(keys: pa.RecordBatch, homes: Homes) -> pa.RecordBatch:
    """Equal columns and homes: all of a key but its last column."""
    fields = (
        [*keys.schema, pa.field(HOME, pa.int64())] if keys.num_columns else [(HOME, pa.int64())]
    )
    columns = [*keys.columns, pa.array(homes, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def grouped(keys: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    """Rows by their distinct keys: their places, and where each key begins among them."""
    encoded = KeyCodec(keys.schema).encode(keys)
    _, starts = encoded.distinct()
    return encoded.order.astype(np.int64), starts


def ranged(
    store: MultimapStore,
    stream: str,
    bounds: RangeBounds,
    max_bytes: int,
    *,
    with_orders: bool = False,
) -> Iterator[Stretches]:
    """The rows in some ranges, which are groups."""
    for found in store.probe_ranges(stream, bounds, max_bytes, with_keys=with_orders):
        orders = None
        if found.keys is not None:
            orders = found.keys.column(ORDER).to_numpy(zero_copy_only=False)
        yield Stretches(found.rows, found.ranges, found.first, found.stop, orders)
