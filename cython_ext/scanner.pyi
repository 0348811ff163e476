from typing import final

import pyarrow as pa

from cython_ext.budget import Budget
from cython_ext.entries import EntrySource
from cython_ext.row_codec import RowCodec

@final
class Scanner:
    def __init__(
        self, source: EntrySource, stream: int, codec: RowCodec, budget: Budget
    ) -> None: ...
    def next_piece(self, max_bytes: int) -> pa.RecordBatch | None: ...
