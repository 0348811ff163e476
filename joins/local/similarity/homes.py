"""Where a row is stored, and where its partners may lie: blocks by arrival, and cells of a grid.

Every row is stored once, under (equal columns, home, order). An index says both of a row: its home,
and which homes its partners may have.
"""

from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.local.similarity.measures import chord, on_sphere
from lsmstate.joins.local.similarity.stretches import Groups, Stretches, stretches_of
from lsmstate.joins.local.similarity.vectors import Matrix, norms
from lsmstate.joins.specs.similarity import HOME, ORDER, SimilaritySpec
from lsmstate.store import StateStore

Homes = npt.NDArray[np.int64]
Orders = npt.NDArray[np.float64]

#: Dimensions in which cells have few enough neighbours.
GRID_DIMENSIONS: Final = 3
#: Cells are wider than the threshold by this part, which is more than rounding moves a point.
_ROOM: Final = 2.0**-10
#: Cells beyond this one are one.
_LAST_CELL: Final = float(1 << 40)
_MIXERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


class Index(Protocol):
    """Homes of rows, and what may match."""

    def homes(self, values: Any, rows: int) -> tuple[Homes, Orders]:
        """Where rows are stored: under a home, and in which order there."""
        ...

    def near(
        self, stream: str, values: Any, keys: pa.RecordBatch, max_bytes: int
    ) -> tuple[Groups, Iterator[Stretches]]:
        """Stored rows of a stream that may match rows with these values and equal columns."""
        ...


def index_of(spec: SimilaritySpec, store: StateStore, dimension: int | None) -> Index:
    """The index of a spec, for vectors of a dimension."""
    if can_use_grid(spec, dimension):
        return Grid(spec, store)
    return Blocks(spec, store)


def can_use_grid(spec: SimilaritySpec, dimension: int | None) -> bool:
    """Whether rows lie in cells of a grid."""
    if spec.algorithm not in ("auto", "grid") or dimension is None:
        return False
    return 1 <= dimension <= GRID_DIMENSIONS and spec.metric in _POINTS


class Blocks:
    """All rows of equal columns in one home, as they arrive."""

    def __init__(self, spec: SimilaritySpec, store: StateStore) -> None:
        self._store = store
        self._codec = KeyCodec(spec.place_schema)
        self._schema = spec.place_schema

    def homes(self, values: Any, rows: int) -> tuple[Homes, Orders]:
        """One home."""
        return np.zeros(rows, np.int64), np.zeros(rows)

    def near(
        self, stream: str, values: Any, keys: pa.RecordBatch, max_bytes: int
    ) -> tuple[Groups, Iterator[Stretches]]:
        """All rows with the same equal columns."""
        if not keys.num_columns:
            return Groups.one(len(values)), self._all(stream, max_bytes)
        places = placed(self._schema, keys, *self.homes(values, len(values)))
        distinct, starts = self._codec.encode(places).distinct()
        order = self._codec.encode(places).order.astype(np.int64)
        return Groups(order, starts), probed(self._store, stream, distinct, max_bytes)

    def _all(self, stream: str, max_bytes: int) -> Iterator[Stretches]:
        for rows in self._store.scan(stream, max_bytes):
            ends = np.array([rows.num_rows])
            yield Stretches(rows, np.zeros(1, np.int64), np.zeros(1, np.int64), ends)


class Grid:
    """Cells a little wider than the threshold: partners lie in a cell or beside it."""

    def __init__(self, spec: SimilaritySpec, store: StateStore) -> None:
        self._store = store
        self._codec = KeyCodec(spec.place_schema)
        self._schema = spec.place_schema
        self._metric = spec.metric
        reach = _POINTS[spec.metric][1](spec.threshold)
        self._cell = reach * (1 + _ROOM) or 1.0

    def homes(self, values: Matrix, rows: int) -> tuple[Homes, Orders]:
        """The cell of each vector."""
        return _numbered(self._cells(values)), np.zeros(rows)

    def _cells(self, values: Matrix) -> npt.NDArray[np.float64]:
        points = _POINTS[self._metric][0](values)
        with np.errstate(over="ignore"):
            return np.clip(np.floor(points / self._cell), -_LAST_CELL, _LAST_CELL)

    def near(
        self, stream: str, values: Matrix, keys: pa.RecordBatch, max_bytes: int
    ) -> tuple[Groups, Iterator[Stretches]]:
        """The rows of the same and of all neighbouring cells."""
        cells = self._cells(values)
        dimensions = cells.shape[1]
        steps = np.stack(np.meshgrid(*[[-1, 0, 1]] * dimensions), -1).reshape(-1, dimensions)
        around = _numbered((cells[:, None] + steps).reshape(-1, dimensions))
        rows = np.repeat(np.arange(len(values)), len(steps))
        if keys.num_columns:
            keys = keys.take(pa.array(rows))
        encoded = self._codec.encode(placed(self._schema, keys, around, np.zeros(len(around))))
        distinct, starts = encoded.distinct()
        members = rows[encoded.order.astype(np.int64)]
        return Groups(members, starts), probed(self._store, stream, distinct, max_bytes)


def _numbered(cells: npt.NDArray[np.float64]) -> Homes:
    """Cells as numbers. Two cells may have one number: then both are looked into."""
    found = np.zeros(len(cells), np.uint64)
    for column, mixer in zip(cells.T, _MIXERS, strict=False):
        found ^= column.astype(np.int64).astype(np.uint64) * np.uint64(mixer)
        found ^= found >> np.uint64(29)
    return found.astype(np.int64)


def placed(schema: pa.Schema, keys: pa.RecordBatch, homes: Homes, orders: Orders) -> pa.RecordBatch:
    """The keys of rows in the store."""
    columns = [*keys.columns, pa.array(homes, pa.int64()), pa.array(orders, pa.float64())]
    assert schema.names[-2:] == [HOME, ORDER]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def probed(store: StateStore, stream: str, keys: Any, max_bytes: int) -> Iterator[Stretches]:
    """The rows of some keys, which are groups."""
    probe = store.probe(stream, keys)
    for found in probe.fetch(np.flatnonzero(probe.counts), max_bytes):
        yield stretches_of(np.asarray(found.positions), found.rows)


def _plain(values: Matrix) -> Matrix:
    return values.astype(np.float64, copy=False)


def _unit(values: Matrix) -> Matrix:
    found = values.astype(np.float64)
    found /= np.abs(found).max(axis=1, keepdims=True)  # whose squares are numbers
    return np.asarray(found / norms(found)[:, None])


def _same(threshold: float) -> float:
    return threshold


def _chord_of_cosine(threshold: float) -> float:
    return float(np.sqrt(2 * min(threshold, 2.0)) * (1 + 1e-9) + 1e-7)


def _chord_of_angle(threshold: float) -> float:
    return float(2 * np.sin(np.pi * min(threshold, 1.0) / 2) * (1 + 1e-9) + 1e-7)


#: By metric, points of a space, and how far apart on an axis those of a pair are at most.
_POINTS: Final[dict[str, Any]] = {
    "l2": (_plain, _same),
    "manhattan": (_plain, _same),
    "chebyshev": (_plain, _same),
    "cosine": (_unit, _chord_of_cosine),
    "angular": (_unit, _chord_of_angle),
    "haversine": (on_sphere, chord),
}
