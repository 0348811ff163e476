from collections.abc import Sequence
from typing import Final, final

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]

CODES: Final[dict[str, int]]

@final
class PairTiles:
    def __init__(
        self,
        program: Sequence[float | str | tuple[str, int]],
        left: Sequence[_Floats],
        right: Sequence[_Floats],
        lefts: int,
        rights: int,
    ) -> None: ...
    def next(self, most: int) -> tuple[_Places, _Places] | None: ...
