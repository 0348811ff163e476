import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.int64]

def edit_keys(
    characters: npt.NDArray[np.uint32],
    ends: _Numbers,
    edits: int,
    longest: int,
    is_stored: bool,
) -> tuple[_Numbers, _Numbers]: ...
