from typing_extensions import disjoint_base

from lsmstate.cython_ext.entries.key_ranges import KeyRanges

@disjoint_base
class EntrySource:
    @property
    def deleted(self) -> KeyRanges | None: ...
    def skip_behind(self, key: bytes) -> None: ...
    def entries(self, start: bytes = ...) -> list[tuple[bytes, int, list[bytes]]]: ...
