"""What routings of documents share: each document goes to several cells, and carries them.

Two documents that match have a cell in common. Both are stored there, and the smallest such cell
gives the pair. So a copy has its smaller cells beside it, as the marks say.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.joins.document_reading import MARKS, Reading
from lsmstate.joins.protocols import Role, Routed

Numbers = npt.NDArray[np.int64]


class Cells(NamedTuple):
    """Of each document its cells, ascending: where they end, and their numbers."""

    ends: Numbers
    numbers: Numbers

    @property
    def counts(self) -> Numbers:
        """How many cells each document has."""
        return np.diff(self.ends, prepend=0)


#: The part of a routing that is its own: the cells of documents, which are those of some rows. One
#: without attributes has none.
ChoosesCells = Callable[[Documents, pa.RecordBatch], Cells]


class CellRouter:
    """The router of documents to their cells."""

    def __init__(self, chooser: ChoosesCells, reading: Reading) -> None:
        self._chooser = chooser
        self._reading = reading

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows by their documents. A malformed one goes to one cell, which judges it.

        Cost: reading the documents, and a copy for each cell.
        """
        documents = self._reading.read(keys.column(0))
        ends, numbers = self._chooser(documents, rows)
        counts = np.diff(ends, prepend=0)
        malformed = np.flatnonzero(documents.faults_found())
        positions = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        if len(malformed):
            positions = np.concatenate([positions, malformed])
            numbers = np.concatenate([numbers, np.zeros(len(malformed), np.int64)])
            order = np.argsort(positions, kind="stable")
            positions, numbers = positions[order], numbers[order]
            counts = np.bincount(positions, minlength=len(counts))
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(positions)) - np.repeat(starts, counts)
        roles = np.where(rank == 0, Role.STORE, Role.COPY).astype(np.int8)
        return Routed(positions, numbers, roles, _marks(starts[positions], rank, numbers))


def _marks(starts: Numbers, rank: Numbers, numbers: Numbers) -> pa.RecordBatch:
    """Beside each copy the cells of its document that stand before its own."""
    offsets = np.zeros(len(rank) + 1, np.int32)
    np.cumsum(rank, out=offsets[1:])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], rank)
    values = numbers[np.repeat(starts, rank) + inside]
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int64()))
    return pa.RecordBatch.from_arrays([lists], schema=MARKS)
