from typing import final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.entries.key_ranges import KeyRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.cython_ext.sstable.sst_reader import Sst

@final
class Lookup:
    def __init__(
        self,
        keys: KeyBatch,
        stream: int,
        positions: npt.NDArray[np.int64] | None,
        codec: RowCodec,
        budget: Budget,
        run_room: int,
    ) -> None: ...
    def own_keys(self) -> None: ...
    def end_search(self) -> None: ...
    def key_range(self) -> tuple[bytes, bytes] | None: ...
    def delete_ranges(self, deleted: KeyRanges) -> None: ...
    def search_run(self, files: list[Sst]) -> int: ...
    def search_memtable(self, memtable: Memtable) -> None: ...
    def count(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
    def counters(self) -> tuple[int, int, int, int]: ...
