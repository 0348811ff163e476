from typing import Final, final

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.keys.key_codec import KeyBatch

_Numbers = npt.NDArray[np.int64]

@final
class KeyPlaces:
    keys: Final[KeyBatch | None]
    def __init__(self, keys: KeyBatch | None, starts: _Numbers, places: _Numbers) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def improve(
        self,
        asked: KeyBatch | None,
        limits: _Numbers,
        best: _Numbers,
        rows: _Numbers,
        sources: _Numbers,
        source: int,
    ) -> None: ...
    def between(self, least: _Numbers, most: _Numbers) -> tuple[_Numbers, _Numbers]: ...
    def precedes(self, newer: KeyPlaces) -> bool: ...
    def merged(self, newer: KeyPlaces) -> tuple[KeyPlaces, _Numbers | None]: ...
