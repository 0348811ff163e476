from typing import Final, final

import numpy as np
import numpy.typing as npt

ROW_MOST: Final[int]
QUERY_MOST: Final[int]
MOST_ROWS: Final[int]
FRONT_BYTES: Final[int]
BESIDE_BYTES: Final[int]
LEVEL: Final[int]

def rounded(
    values: npt.NDArray[np.float64],
    first: int,
    last: int,
    scale: float,
    most: int,
    numbers: npt.NDArray[np.int8],
    at: int,
) -> npt.NDArray[np.float64]: ...

@final
class CodePanels:
    def __init__(
        self,
        heads: npt.NDArray[np.int8],
        wholes: npt.NDArray[np.int16],
        terms: npt.NDArray[np.float64],
        usual: float,
        longest: float,
        row_error: float,
        unit: float,
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def tail(self) -> int: ...
    def candidates(
        self,
        chunks: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int32],
        first: int,
        level: int = -1,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], int, int]: ...
