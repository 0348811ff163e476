from typing import Final, final

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Places = npt.NDArray[np.int32]

PRODUCT: Final[int]
SUM: Final[int]
GREATEST: Final[int]
COUNT: Final[int]
LEVEL: Final[int]

@final
class Panels:
    def __init__(self, kind: int, queries: _Floats, bounds: _Floats, rows: int) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def rows(self) -> int: ...
    def candidates(
        self,
        rows: _Floats,
        row_bounds: _Floats,
        first: int = 0,
        last: int = -1,
        level: int = -1,
    ) -> tuple[_Places, _Places]: ...
