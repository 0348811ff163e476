from typing import final

import pyarrow as pa

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.rows.row_codec import RowCodec

@final
class Scanner:
    def __init__(
        self,
        source: EntrySource,
        low: bytes,
        high: bytes | None,
        codec: RowCodec,
        budget: Budget,
        reverse: bool = ...,
        decoder: KeyDecoder | None = ...,
    ) -> None: ...
    def next_piece(self, max_bytes: int) -> pa.RecordBatch | None: ...
    def keys_of_piece(self) -> pa.RecordBatch: ...
