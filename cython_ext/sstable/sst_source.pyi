from typing_extensions import disjoint_base

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.sstable.sst_reader import Sst

@disjoint_base
class SstSource(EntrySource):
    def __init__(self, sst: Sst, scanning: bool = ...) -> None: ...
    @property
    def row_block_offset(self) -> int: ...
    @property
    def key_block_offset(self) -> int: ...
