from collections.abc import Callable, Sequence
from typing import final

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges

@final
class MergingSource(EntrySource):
    @property
    def deleted(self) -> KeyRanges: ...
    def __init__(self, sources: Sequence[EntrySource], reverse: bool = ...) -> None: ...

@final
class ChainSource(EntrySource):
    def __init__(
        self, openers: Sequence[Callable[[], EntrySource]], deleted: KeyRanges | None = ...
    ) -> None: ...
