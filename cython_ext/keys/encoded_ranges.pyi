from typing import final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.keys.key_codec import KeyBatch

_Positions = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

@final
class EncodedRanges:
    def __init__(
        self,
        n: int,
        lows: KeyBatch | None,
        highs: KeyBatch | None,
        after_low: bool = ...,
        after_high: bool = ...,
        zones: tuple[tuple[int, _Words, _Words], ...] = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    def some(self, rows: _Positions) -> EncodedRanges: ...
    @property
    def n(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def segment_count(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def zones(self) -> tuple[tuple[int, _Words, _Words], ...]: ...
    def segment(self, place: int) -> tuple[bytes, bytes | None]: ...

@final
class RangeSweep:
    def __init__(self, ranges: EncodedRanges) -> None: ...
    def next(self, keys: KeyBatch, is_last: bool) -> tuple[_Positions, _Positions, _Positions]: ...
