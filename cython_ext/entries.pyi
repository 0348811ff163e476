from typing_extensions import disjoint_base

@disjoint_base
class EntrySource:
    def entries(self, start: bytes = ...) -> list[tuple[bytes, int, list[bytes]]]: ...
