from collections.abc import Callable, Sequence
from typing import final

from cython_ext.entries import EntrySource

@final
class MergingSource(EntrySource):
    def __init__(self, sources: Sequence[EntrySource], reverse: bool = ...) -> None: ...

@final
class ChainSource(EntrySource):
    def __init__(self, openers: Sequence[Callable[[], EntrySource]]) -> None: ...
