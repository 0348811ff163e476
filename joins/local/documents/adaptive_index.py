"""AdaptiveIndex: the index that costs least for the documents at hand.

Indexes differ by what documents are like: how many shapes they have, how many values their
attributes have, whether some attributes are in all of them. So each is tried on a sample: lookups
in a small and in a larger part of it say what a lookup costs and how that grows. Costs are counted
steps, so that the choice follows from the documents alone.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents
from lsmstate.cython_ext.documents.document_index import DocumentIndex
from lsmstate.cython_ext.documents.fp_tree import FpTree
from lsmstate.cython_ext.documents.posting_lists import Bitmaps, PostingLists
from lsmstate.cython_ext.documents.shape_index import ShapeIndex

Numbers = npt.NDArray[np.int64]
_Cells = tuple[Numbers, Numbers] | None

INDEXES: Final[dict[str, type[DocumentIndex]]] = {
    "bitmaps": Bitmaps,
    "by_shape": ShapeIndex,
    "fp_tree": FpTree,
    "hash": PostingLists,
}
#: Those that are tried; "hash" is never much better than bitmaps.
TRIED: Final = ("bitmaps", "by_shape", "fp_tree")

#: Documents before the first trial; the next one is at four times as many.
_FIRST: Final = 4096
_GROWTH: Final = 4
#: Documents of the two parts of a sample, and lookups in each.
_PARTS: Final = (256, 1024)
_LOOKUPS: Final = 32
#: Another index must cost less than this part of the one at hand, since it has to be built, and
#: steps are reckoned roughly.
_BETTER: Final = 0.5


@dataclass
class Choice:
    """Which index the documents of a join asked for last."""

    index: str = "bitmaps"


class AdaptiveIndex:
    """Has the interface of ``DocumentIndex``."""

    def __init__(
        self, values: AttributeValues, at_least: int, choice: Choice, most_bytes: int
    ) -> None:
        """Begin with the index that was chosen last. One of more than ``most_bytes`` is not
        chosen."""
        self._values = values
        self._at_least = at_least
        self._choice = choice
        self._most_bytes = most_bytes
        self._name = choice.index
        self._index = INDEXES[self._name](values, at_least)
        self._next_trial = _FIRST

    def __len__(self) -> int:
        return len(self._index)

    @property
    def name(self) -> str:
        """Of the index at hand."""
        return self._name

    @property
    def documents(self) -> Documents:
        """What is stored."""
        return self._index.documents

    @property
    def nbytes(self) -> int:
        """Bytes of the index, without the values."""
        return self._index.nbytes

    def append(self, others: Documents, places: Numbers, cells: _Cells = None) -> None:
        """Store some documents; see ``DocumentIndex.append``. Cost: now and then a trial, and
        building another index."""
        self._index.append(others, places, cells)
        if len(self) >= self._next_trial:
            self._next_trial = _GROWTH * len(self)
            self._choose()

    def pairs(
        self,
        others: Documents,
        places: Numbers,
        limits: Numbers,
        first: int,
        skip: int,
        most: int,
        cells: _Cells = None,
    ) -> tuple[Numbers, Numbers, int, int]:
        """Find stored documents that match others; see ``DocumentIndex.pairs``."""
        return self._index.pairs(others, places, limits, first, skip, most, cells)

    def _choose(self) -> None:
        costs = costs_of(self.documents, self._at_least, self._most_bytes)
        best = min(costs, key=lambda name: (costs[name], name), default=self._name)
        if best == self._name or costs[best] >= _BETTER * costs.get(self._name, math.inf):
            return
        index = INDEXES[best](self._values, self._at_least)
        places = np.arange(len(self), dtype=np.int64)
        index.append(self.documents, places, self._index.cells_kept())
        self._name = self._choice.index = best
        self._index = index


def costs_of(documents: Documents, at_least: int, most_bytes: int) -> dict[str, float]:
    """By index, nanoseconds to look up a document and to store it, when there will be twice as
    many. Indexes that would take more than ``most_bytes`` are left out."""
    count = len(documents)
    spread = np.linspace(0, count - 1, _PARTS[1]).astype(np.int64).reshape(_PARTS[0], -1)
    order = np.concatenate([spread[:, 0], spread[:, 1:].ravel()])  # the small part is spread too
    probes = np.arange(max(0, count - _LOOKUPS), count, dtype=np.int64)
    scale = 2 * count / _PARTS[1]
    found = {}
    for name in TRIED:
        index = INDEXES[name](documents.values, at_least)
        lookup: list[float] = []
        stored = 0
        for size in _PARTS:
            before = index.work
            index.append(documents, order[len(index) : size])
            stored += index.work - before
            before = index.work
            limits = np.full(len(probes), size, np.int64)
            index.pairs(documents, probes, limits, 0, 0, size * len(probes))
            lookup.append(1 + (index.work - before) / len(probes))
        if index.nbytes * scale <= most_bytes:
            growth = math.log(lookup[1] / lookup[0]) / math.log(_PARTS[1] / _PARTS[0])
            found[name] = stored / _PARTS[1] + lookup[1] * scale ** min(1.0, max(0.0, growth))
    return found
