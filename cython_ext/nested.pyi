from collections.abc import Callable

import pyarrow as pa

def remade(
    column: pa.Array, t: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array: ...
