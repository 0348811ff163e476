from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

@final
class Gatherer:
    def __init__(self, sides: Sequence[pa.Schema], schema: pa.Schema) -> None: ...
    def sources(self, batches: Sequence[pa.RecordBatch]) -> Sources: ...

@final
class Sources:
    def __init__(self, gatherer: Gatherer, batches: Sequence[pa.RecordBatch]) -> None: ...
    def gather(self, places: Sequence[npt.NDArray[np.int64]]) -> pa.RecordBatch: ...
