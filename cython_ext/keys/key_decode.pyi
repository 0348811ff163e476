from typing import final

import pyarrow as pa

@final
class KeyDecoder:
    def __init__(self, schema: pa.Schema) -> None: ...
    @property
    def schema(self) -> pa.Schema: ...
    def decode(self, keys: list[bytes]) -> pa.RecordBatch: ...
