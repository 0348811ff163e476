"""What routers and local joins of documents share: how documents are read, which window each is in,
and what stands beside a copy."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents
from lsmstate.cython_ext.documents.json_reader import JsonReader
from lsmstate.joins.conditions.intervals import UNITS

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


def panes(times: pa.Array, step_us: int) -> npt.NDArray[np.int64]:
    """The number of the window of each time stamp, where windows of so many microseconds follow
    each other; 0 without a time."""
    ticks = times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    per_second = 1000 ** UNITS.index(times.type.unit)
    step, rest = divmod(step_us * per_second, 1_000_000)
    if rest:  # of a coarser unit than the step
        ticks, step = ticks * (1_000_000 // per_second), step_us
    return np.asarray(np.floor_divide(ticks, step))
