"""How documents are read, the same for routers and local joins, and what stands beside a copy."""

from typing import Final, NamedTuple

import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents
from lsmstate.cython_ext.documents.json_reader import JsonReader

#: What is written beside each copy: the smaller ones among the cells of its document.
CELLS: Final = "@cells"
MARKS: Final = pa.schema([(CELLS, pa.list_(pa.int64()))])


class Reading(NamedTuple):
    """How documents are read; the same for routers and local joins."""

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    sets: bool = True
    nulls: bool = True

    def read(self, texts: pa.Array) -> Documents:
        """The documents of JSON texts, with values of their own."""
        values = AttributeValues(self.include, self.exclude)
        return JsonReader(values, self.sets, self.nulls).read(texts)


#: With all defaults.
READING: Final = Reading()
