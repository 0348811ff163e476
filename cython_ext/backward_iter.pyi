from typing import final

from cython_ext.memtable import Memtable, MemtableSource
from cython_ext.sst_reader import Sst
from cython_ext.sst_source import SstSource

@final
class BackwardMemtableSource(MemtableSource):
    def __init__(self, memtable: Memtable) -> None: ...

@final
class BackwardSstSource(SstSource):
    def __init__(self, sst: Sst) -> None: ...
