from collections.abc import Callable
from typing import final

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.memory.budget import Budget

@final
class RetractingSource(EntrySource):
    @property
    def deleted(self) -> KeyRanges | None: ...
    def __init__(
        self,
        source: EntrySource,
        opened: Callable[[bytes], EntrySource],
        streams: int,
        budget: Budget,
        most_bytes: int,
    ) -> None: ...
    def has_pairs(self) -> bool: ...
