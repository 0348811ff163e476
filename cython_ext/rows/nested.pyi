from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

def remade(
    column: pa.Array, t: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array: ...
def is_any_list_view(t: pa.DataType) -> bool: ...
def view_offsets(
    column: pa.Array, t: pa.DataType
) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]: ...
