"""IndexMemory: the indexes of all windows, and the values they share, under one bound."""

from collections.abc import Iterable
from typing import Final

from lsmstate.cython_ext.documents.attribute_values import AttributeValues
from lsmstate.cython_ext.documents.document_index import DocumentIndex
from lsmstate.cython_ext.documents.json_reader import JsonReader
from lsmstate.joins.local.documents.adaptive_index import INDEXES, AdaptiveIndex, Choice
from lsmstate.joins.local.documents.stored_window import StoredWindow
from lsmstate.joins.specs.documents import NaturalSpec

#: Bytes of values that candidates may add at least, before the next of them are read apart.
_LEAST_CANDIDATES: Final = 1 << 20


class IndexMemory:
    """Makes indexes, and drops all of them together when they grow too large."""

    def __init__(self, spec: NaturalSpec, most_bytes: int) -> None:
        self._spec = spec
        self._most_bytes = most_bytes
        self.dropped = 0
        self.choice = Choice()
        self._begin()

    def _begin(self) -> None:
        self.values, self.reader = self.new_reader()

    def new_reader(self) -> tuple[AttributeValues, JsonReader]:
        """A reader of documents, and its values, which have numbers of their own."""
        spec = self._spec
        values = AttributeValues(spec.include, spec.exclude)
        return values, JsonReader(values, spec.arrays == "sets", spec.nulls == "value")

    @property
    def candidates_bytes(self) -> int:
        """How many bytes of values documents may add that are only compared."""
        return max(_LEAST_CANDIDATES, self._most_bytes // 2)

    def new_index(self) -> DocumentIndex | AdaptiveIndex:
        """An index without documents."""
        spec = self._spec
        if spec.local == "auto":
            # With the values, two windows of the largest size are at hand.
            return AdaptiveIndex(self.values, spec.at_least, self.choice, self._most_bytes // 2)
        return INDEXES[spec.local](self.values, spec.at_least)

    def is_full(self, windows: Iterable[StoredWindow]) -> bool:
        """Whether all indexes take too much."""
        nbytes = self.values.nbytes + sum(each.index.nbytes for each in windows)
        return nbytes > self._most_bytes

    def make_room(self, windows: Iterable[StoredWindow]) -> None:
        """Drop all indexes if they take too much; before, list what they hold. Documents that were
        read before are of no use afterwards."""
        windows = list(windows)
        if not self.is_full(windows):
            return
        for each in windows:
            each.list_documents()
        self._begin()
        for each in windows:
            each.drop_index()
        self.dropped += 1
