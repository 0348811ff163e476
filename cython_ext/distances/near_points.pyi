from typing import Final, final

import numpy as np
import numpy.typing as npt

_Points = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int32]

SQUARES: Final[int]
LENGTHS: Final[int]
GREATEST: Final[int]
LEVEL: Final[int]
FURTHEST: Final[float]

@final
class PointTree:
    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def longest(self) -> float: ...
    def __init__(self, points: _Points, origin: _Points) -> None: ...
    @property
    def nbytes(self) -> int: ...

@final
class NearPairs:
    @property
    def compared(self) -> int: ...
    def __init__(
        self, queries: PointTree, rows: PointTree, kind: int, reach: float, level: int = -1
    ) -> None: ...
    def next(self, most: int) -> tuple[_Places, _Places] | None: ...
