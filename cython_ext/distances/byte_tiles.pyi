from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.int8]
_Floats = npt.NDArray[np.float32]
_Doubles = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int32]

ROW_MOST: Final[int]
QUERY_MOST: Final[int]
LEVEL: Final[int]

def quantized(
    vectors: npt.NDArray[Any], most: int
) -> tuple[_Bytes, _Doubles, _Doubles, _Doubles]: ...

@final
class BytePanels:
    def __init__(self, queries: _Bytes, terms: _Floats, rows: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def candidates(
        self,
        rows: _Bytes,
        terms: _Floats,
        first: int = 0,
        last: int = -1,
        level: int = -1,
    ) -> tuple[_Places, _Places]: ...
