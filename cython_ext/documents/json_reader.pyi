from typing import Any, final

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents

FAULTS: dict[int, str]

@final
class JsonReader:
    def __init__(self, values: AttributeValues, sets: bool = True, nulls: bool = True) -> None: ...
    def read(self, column: Any) -> Documents: ...
