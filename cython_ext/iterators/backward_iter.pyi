from typing import final

from lsmstate.cython_ext.memtable.memtable import Memtable, MemtableSource
from lsmstate.cython_ext.sstable.sst_reader import Sst
from lsmstate.cython_ext.sstable.sst_source import SstSource

@final
class BackwardMemtableSource(MemtableSource):
    def __init__(self, memtable: Memtable) -> None: ...

@final
class BackwardSstSource(SstSource):
    def __init__(self, sst: Sst) -> None: ...
