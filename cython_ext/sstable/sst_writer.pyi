from collections.abc import Mapping
from typing import Any, final

from lsmstate.cython_ext.base.file import AppendFile
from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.memory.budget import Budget
from lsmstate.cython_ext.rows.zone_columns import ZoneColumns

@final
class SstWriter:
    def __init__(
        self,
        file: AppendFile,
        budget: Budget,
        *,
        codec: int,
        block_bytes: int,
        filter_bits: int,
        uid: int,
        base_sequence: int,
        zones: Mapping[int, ZoneColumns] = ...,
    ) -> None: ...
    def consume(
        self,
        source: EntrySource,
        max_bytes: int,
        file_bytes: int,
        bottom: bool,
        standing: bool = False,
    ) -> int: ...
    def facts(self) -> dict[str, Any]: ...
    def finish(self, properties: bytes, edit: bytes, sync: bool) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def top_bytes(self) -> int: ...
    @property
    def path(self) -> str: ...
