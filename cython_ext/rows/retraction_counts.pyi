from typing import final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.rows.row_codec import RowBatch

def row_hash(secret: bytes, group: int, row: bytes) -> bytes: ...

@final
class RowCounts:
    def __init__(self, budget: Budget, component: str, most_bytes: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def most_rows(self) -> int: ...
    def begin(self, expected: int, part: int = ..., parts: int = ...) -> int: ...
    def add_rows(self, groups: npt.NDArray[np.int64], rows: RowBatch) -> int: ...
    def take_rows(
        self,
        groups: npt.NDArray[np.int64],
        rows: RowBatch,
        start: int,
        end: int,
        taken: npt.NDArray[np.uint8],
    ) -> None: ...
