"""Verification: which candidates of the posting lists match the documents that asked for them.

Candidates are read as the documents of the index are, whose values have numbers. Values of many
candidates would fill the memory that these numbers may take. So from some bytes on, they get
numbers of their own, which are forgotten, and the documents that ask are read again.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.cython_ext.documents.document_index import matching
from lsmstate.joins.local.documents.index_memory import IndexMemory
from lsmstate.joins.local.documents.stored_window import Cells

Numbers = npt.NDArray[np.int64]


class Verification:
    """Judges candidates of the documents of one slice of rows."""

    def __init__(
        self,
        memory: IndexMemory,
        at_least: int,
        texts: pa.Array,
        documents: Documents,
        places: Numbers,
        cells: Cells,
    ) -> None:
        """Begin with the numbers of the index.

        Args:
            memory: Has the readers, and says how much candidates may add.
            at_least: How many shared attributes two documents need.
            texts: The documents that look for partners, as text.
            documents: The same as pairs, and ``places``: of each text its place among them.
            cells: Of each text its smaller cells; None: there are none.
        """
        self._memory = memory
        self._at_least = at_least
        self._texts = texts
        self._row_cells = cells
        self._values, self._reader = memory.values, memory.reader
        self._documents = documents
        self._places = places
        self._cells = None if cells is None else spread(cells, places, len(documents))
        self._most_bytes = self._values.nbytes + memory.candidates_bytes

    @property
    def cells(self) -> Cells:
        """The cells of the documents as they were given."""
        return self._cells

    def matches(
        self, at: Numbers, candidates: pa.Array, candidates_at: Numbers, cells: Cells
    ) -> npt.NDArray[np.bool_]:
        """Return of each pair of a text and a candidate whether they match, and no smaller cell
        gives them."""
        if self._values.nbytes > self._most_bytes:
            self._read_apart()
        return np.asarray(
            matching(
                self._documents,
                self._places[at],
                self._reader.read(candidates),
                candidates_at,
                self._at_least,
                self._cells,
                None if self._cells is None else cells,
            )
        )

    def _read_apart(self) -> None:
        self._values, self._reader = self._memory.new_reader()
        self._documents = self._reader.read(self._texts)
        self._places = np.arange(len(self._texts), dtype=np.int64)
        self._cells = self._row_cells
        self._most_bytes = self._values.nbytes + self._memory.candidates_bytes


def spread(cells: tuple[Numbers, Numbers], places: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """The cells of rows as those of documents, among which the rows' stand at ``places``."""
    ends, numbers = cells
    counts = np.zeros(count, np.int64)
    counts[places] = np.diff(ends, prepend=0)
    return np.cumsum(counts), numbers
