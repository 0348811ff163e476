"""Results that are not made yet: which row of each stream's batch they are made of.

A row that is in many results is held once (late materialization: Abadi, Myers, DeWitt and Madden,
"Materialization Strategies in a Column-Oriented DBMS", ICDE 2007).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.schema.arrow_sizes import pieces_of

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Picked:
    """Result ``i`` holds row ``places[s][i]`` of ``batches[s]``, for each stream s; ``sizes`` are
    the bytes of each result once it is made."""

    batches: Sequence[pa.RecordBatch]
    places: Sequence[Numbers]
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.sizes)

    def at(self, places: Numbers) -> "Picked":
        """The results at some places."""
        return Picked(self.batches, [each[places] for each in self.places], self.sizes[places])

    def column(self, number: int) -> pa.Array:
        """The values of one column of the results, counted over all batches."""
        for batch, places in zip(self.batches, self.places, strict=True):
            if number < batch.num_columns:
                return batch.column(number).take(pa.array(places))
            number -= batch.num_columns
        raise IndexError(number)

    def compact(self) -> "Picked":
        """The same results of batches that hold no row besides, in the order they had."""
        pairs = [
            _used(batch, places) for batch, places in zip(self.batches, self.places, strict=True)
        ]
        return Picked([batch for batch, _ in pairs], [places for _, places in pairs], self.sizes)

    def made(self, gatherer: Gatherer, piece_bytes: int) -> Iterator[pa.RecordBatch]:
        """The results, in pieces of at most ``piece_bytes`` of Arrow data or one row."""
        sources = gatherer.sources(self.batches)
        for piece in pieces_of(self.sizes, piece_bytes):
            yield sources.gather([places[piece] for places in self.places])


def _used(batch: pa.RecordBatch, places: Numbers) -> tuple[pa.RecordBatch, Numbers]:
    is_used = np.zeros(batch.num_rows, dtype=np.bool_)
    is_used[places] = True
    used = np.flatnonzero(is_used)
    if len(used) == batch.num_rows:
        return batch, places
    return batch.take(pa.array(used)), (np.cumsum(is_used) - 1)[places]
