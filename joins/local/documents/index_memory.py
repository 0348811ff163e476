"""IndexMemory: the indexes of all windows, and the values they share, under one bound."""

from collections.abc import Iterable

from lsmstate.cython_ext.documents.attribute_values import AttributeValues
from lsmstate.cython_ext.documents.document_index import DocumentIndex
from lsmstate.cython_ext.documents.json_reader import JsonReader
from lsmstate.joins.local.documents.adaptive_index import INDEXES, AdaptiveIndex, Choice
from lsmstate.joins.local.documents.stored_window import StoredWindow
from lsmstate.joins.specs.documents import NaturalSpec


class IndexMemory:
    """Makes indexes, and drops all of them together when they grow too large."""

    def __init__(self, spec: NaturalSpec, most_bytes: int) -> None:
        self._spec = spec
        self._most_bytes = most_bytes
        self.dropped = 0
        self.choice = Choice()
        self._begin()

    def _begin(self) -> None:
        spec = self._spec
        self.values = AttributeValues(spec.include, spec.exclude)
        self.reader = JsonReader(self.values, spec.arrays == "sets", spec.nulls == "value")

    def new_index(self) -> DocumentIndex | AdaptiveIndex:
        """An index without documents."""
        spec = self._spec
        if spec.local == "auto":
            # With the values, two windows of the largest size are at hand.
            return AdaptiveIndex(self.values, spec.at_least, self.choice, self._most_bytes // 2)
        return INDEXES[spec.local](self.values, spec.at_least)

    def make_room(self, windows: Iterable[StoredWindow]) -> None:
        """Drop all indexes if they take too much; before, list what they hold. Documents that were
        read before are of no use afterwards."""
        windows = list(windows)
        if self.values.nbytes + sum(each.index.nbytes for each in windows) <= self._most_bytes:
            return
        for each in windows:
            each.list_documents()
        self._begin()
        for each in windows:
            each.drop_index()
        self.dropped += 1
