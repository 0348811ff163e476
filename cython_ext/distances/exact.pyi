from typing import Final

import numpy as np
import numpy.typing as npt

_Vectors = npt.NDArray[np.float32] | npt.NDArray[np.float64]
_Places = npt.NDArray[np.int32]

EARTH_RADIUS: Final[float]

def distances(
    metric: int, a: _Vectors, a_places: _Places, b: _Vectors, b_places: _Places
) -> npt.NDArray[np.float64]: ...
def squared_norms(rows: _Vectors) -> npt.NDArray[np.float64]: ...
def common(
    a: _Places,
    a_ends: _Places,
    a_places: _Places,
    b: _Places,
    b_ends: _Places,
    b_places: _Places,
) -> npt.NDArray[np.int32]: ...
