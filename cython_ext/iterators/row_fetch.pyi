from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.iterators.key_lookup import Lookup

@final
class Cursor:
    def __init__(self, lookup: Lookup, positions: npt.NDArray[np.int64]) -> None: ...
    @property
    def rows_of_planes(self) -> int: ...
    def next_piece(self, max_bytes: int) -> tuple[npt.NDArray[np.int64], pa.RecordBatch] | None: ...
