"""The join-matrix: each cell of a matrix of units stores a part of both streams.

A row of the first stream belongs to one row of cells, and one of the second to one column. It is
stored in all of their cells, and looks for partners there. A pair meets in one cell. The part
follows from the content, so a replay routes alike; the papers choose it at random.

Sources: Stamos, Young, *A symmetric fragment and replicate algorithm for distributed joins* (IEEE
TPDS 1993); Okcan, Riedewald, *Processing theta-joins using MapReduce* (SIGMOD 2011); the baseline
of Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash_router import NO_MARKS


@dataclass(frozen=True)
class MatrixRouting:
    """Two streams over cells, which are numbered row by row."""

    streams: tuple[str, str]
    shape: tuple[int, int]
    """How many parts the first stream has, and how many the second."""
    marks: pa.Schema = field(default=NO_MARKS, compare=False)

    @classmethod
    def square(cls, streams: Sequence[str], units: int) -> "MatrixRouting":
        """As many parts of both streams, as the papers' comparison has it."""
        side = round(units**0.5)
        first, second = streams
        return cls((first, second), (side, side))

    @property
    def adopted(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "MatrixRouting":
        """The routing as it is."""
        return self

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: object = None
    ) -> "MatrixRouter":
        """The router of one stream."""
        return MatrixRouter(self, stream, rows)


class MatrixRouter:
    """The router of one stream of ``MatrixRouting``."""

    def __init__(self, routing: MatrixRouting, stream: str, rows: pa.Schema) -> None:
        parts, columns = routing.shape
        cells = np.arange(parts * columns, dtype=np.int64).reshape(parts, columns)
        self._cells = cells if stream == routing.streams[0] else cells.T
        self._codec = RowCodec(rows)

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Send each row to all cells of its part, of which the first counts it as its own."""
        part = content_hashes(rows, self._codec) % np.uint64(len(self._cells))
        buckets = self._cells[part.astype(np.int64)]
        roles = np.full(buckets.shape, Role.COPY, np.int8)
        roles[:, 0] = Role.STORE
        positions = np.repeat(np.arange(rows.num_rows, dtype=np.int64), buckets.shape[1])
        return Routed(positions, buckets.ravel(), roles.ravel())
