import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents

_Numbers = npt.NDArray[np.int64]
_Cells = tuple[_Numbers, _Numbers] | None

@disjoint_base
class DocumentIndex:
    def __init__(self, values: AttributeValues, at_least: int = 1) -> None: ...
    def __len__(self) -> int: ...
    @property
    def documents(self) -> Documents: ...
    @property
    def work(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def cells_kept(self) -> _Cells: ...
    def append(self, others: Documents, places: _Numbers, cells: _Cells = None) -> None: ...
    def pairs(
        self,
        others: Documents,
        places: _Numbers,
        limits: _Numbers,
        first: int,
        skip: int,
        most: int,
        cells: _Cells = None,
    ) -> tuple[_Numbers, _Numbers, int, int]: ...

def matching(
    first: Documents,
    first_places: _Numbers,
    second: Documents,
    second_places: _Numbers,
    at_least: int = 1,
    first_cells: _Cells = None,
    second_cells: _Cells = None,
) -> npt.NDArray[np.bool_]: ...
