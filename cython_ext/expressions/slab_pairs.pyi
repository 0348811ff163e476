from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]

SLAB: Final[int]

def value_codes(values: npt.NDArray[Any]) -> _Numbers: ...

@final
class Slabs:
    count: Final[int]
    slab: Final[int]
    def __init__(
        self,
        values: npt.NDArray[Any],
        second: npt.NDArray[Any],
        places: _Numbers | None = None,
        slab: int = 4096,
    ) -> None: ...

@final
class SlabPairs:
    def __init__(
        self,
        slabs: Slabs,
        lefts: _Numbers,
        least: _Numbers,
        most: _Numbers,
        second_least: _Numbers,
        second_most: _Numbers,
        is_by_most: bool,
    ) -> None: ...
    def next(self, most: int) -> tuple[_Numbers, _Numbers] | None: ...
