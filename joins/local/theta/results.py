"""Results of a join of two streams by any condition: pairs of rows, and rows without a partner."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.theta.finder import Combinations
from lsmstate.joins.specs.theta_sides import ThetaSides
from lsmstate.schema.arrow_sizes import least_row_bytes, pieces_of, row_sizes


class SideResults:
    """Makes results of rows."""

    def __init__(self, sides: ThetaSides, piece_bytes: int) -> None:
        self._sides = sides
        self._piece_bytes = piece_bytes
        self._streams = {name: sides.theta.streams[name] for name in sides.shown}
        self._gatherer = Gatherer(list(self._streams.values()), sides.rows_schema)

    def pairs(self, found: Combinations) -> Iterator[pa.RecordBatch]:
        """Rows of both streams, in pieces."""
        bound = [found[name] for name in self._streams]
        sizes = np.asarray(sum((each.sizes[each.at] for each in bound), np.int64(0)))
        picked = Picked([b.rows for b in bound], [b.at for b in bound], sizes)
        return picked.made(self._gatherer, self._piece_bytes)

    def alone(self, stream: str, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of a stream, with nulls for the other one if it is shown, in pieces."""
        if not rows.num_rows:
            return
        beside = sum(least_row_bytes(s) for name, s in self._streams.items() if name != stream)
        for place in pieces_of(row_sizes(rows) + beside, self._piece_bytes):
            part = rows.slice(place.start, place.stop - place.start)
            columns = [
                part.column(field.name) if name == stream else pa.nulls(part.num_rows, field.type)
                for name, schema in self._streams.items()
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._sides.rows_schema)
