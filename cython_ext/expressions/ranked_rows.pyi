from typing import Final, final

import numpy as np
import numpy.typing as npt

_Places = npt.NDArray[np.int64]

@final
class RankedRows:
    count: Final[int]
    def __init__(
        self, places: _Places, count: int, small: int = 256, large: int = 4096
    ) -> None: ...

@final
class RankedPairs:
    def __init__(
        self, rows: RankedRows, first: _Places, stop: _Places, low: _Places, high: _Places
    ) -> None: ...
    def next(self, most: int) -> tuple[_Places, _Places] | None: ...
