from typing import final

from cython_ext.entries import EntrySource
from cython_ext.key_ranges import KeyRanges

@final
class RetractingSource(EntrySource):
    @property
    def deleted(self) -> KeyRanges | None: ...
    def __init__(self, source: EntrySource, hidden: EntrySource, streams: int) -> None: ...
