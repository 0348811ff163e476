from collections.abc import Iterable
from typing import final

from lsmstate.cython_ext.rows.row_codec import RowCodec

@final
class ZoneColumns:
    def __init__(self, codec: RowCodec, numbers: Iterable[int]) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def numbers(self) -> list[int]: ...
