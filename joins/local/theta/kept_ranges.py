"""KeptRanges: the rows of indexes that one range is asked of, in memory and by that column.

A lookup in the store encodes and sorts its bounds, and walks over each run and each memtable. So
the rows of an index are kept once they were looked up as often as ``PlacedRows`` says. That pays
most where one stream is small, and many rows of the other one look into it.
"""

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.expressions.slab_pairs import value_codes
from lsmstate.joins.conditions.evaluate import Values
from lsmstate.joins.conditions.key_parts import own_column
from lsmstate.joins.local.parts.placed_rows import Placed, PlacedRows
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.theta.limits import plain
from lsmstate.joins.local.theta.slabs import Codes, valid_places
from lsmstate.joins.specs.theta import Step, ThetaIndex, has_lengths
from lsmstate.store import MultimapStore

_NO_KEY = pa.schema([])


class KeptRanges:
    """The rows of some indexes in ``store``, of which none is ever taken back. The place of a row
    is the code of its bounded column."""

    def __init__(self, store: MultimapStore, piece_bytes: int) -> None:
        self._store = store
        self._piece_bytes = piece_bytes
        self._kept: dict[ThetaIndex, PlacedRows] = {}

    def matches(
        self, step: Step, columns: Values, count: int
    ) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers, Numbers]] | None:
        """Rows of a step's index, combinations that match some of them, and beside each where its
        rows begin and end. None if the rows are not kept.

        Args:
            step: The step.
            columns: Of the combinations.
            count: How many combinations there are.
        """
        if not self._is_for(step):
            return None
        kept = self._kept.get(step.index)
        if kept is None:
            schema = self._store.streams[step.index.name].rows
            kept = self._kept[step.index] = PlacedRows(self._store, _NO_KEY, schema)
        if not kept.looked_up(count, self._stored(step.index)):
            return None
        return self._found(kept, step, columns, count)

    def written(self, stream: str, parts: Iterable[pa.RecordBatch]) -> None:
        """Add rows that were stored."""
        for index, kept in self._kept.items():
            if index.stream == stream and kept.is_kept:
                for part in parts:
                    kept.written(_placed(index, part))

    def give_back(self) -> bool:
        """Let everything go; return whether there was anything."""
        held = [each.give_back() for each in self._kept.values()]
        return any(held)

    def close(self) -> None:
        """Release the memory of what is kept."""
        for kept in self._kept.values():
            kept.close()

    def _is_for(self, step: Step) -> bool:
        low = step.low
        if step.kind != "range" or low is None or step.equal or step.second is not None:
            return False
        if low.takes_nan or not has_lengths(low.part.type):
            return False
        return self._store.streams[step.index.name].expiry is None

    def _stored(self, index: ThetaIndex) -> Iterator[Placed]:
        pieces = self._store.scan(index.name, self._piece_bytes)
        return map(partial(_placed, index), pieces)

    def _found(
        self, kept: PlacedRows, step: Step, columns: Values, count: int
    ) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers, Numbers]]:
        assert step.low is not None
        codes, known = Codes.of(step.low, columns, count)
        held = np.flatnonzero(known)
        # Searches one behind the other find what they read in the cache.
        held = held[np.argsort(codes.least[held])]
        asked = codes.at(held)
        for chunk in kept.chunks:
            first, stop = chunk.places.between(asked.least, asked.most)
            some = np.flatnonzero(first < stop)
            if len(some):
                yield chunk.rows, held[some], first[some], stop[some]


def _placed(index: ThetaIndex, rows: pa.RecordBatch) -> Placed:
    """Rows without those that a null keeps from matching."""
    assert index.low is not None
    values = index.low.values(own_column(rows), rows.num_rows)
    if values.null_count:
        kept = pa.array(valid_places(values))
        rows, values = rows.take(kept), values.take(kept)
    return Placed(rows, (), value_codes(plain(values)))
