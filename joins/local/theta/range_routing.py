"""Range routing of a join by any condition: the range columns of its rows, and their bounds."""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.routing.ranges.range_router import RangeRouting
from lsmstate.joins.specs.theta import Step, ThetaSpec

#: What the tables of ranges cost a row, as messages of a join-biclique. Measured by
#: ``bench.spark.band_join`` with 2 to 8 buckets.
_TABLES_COST: Final = 1.0


def has_ranges(spec: ThetaSpec) -> bool:
    """Whether there are two streams, and rows of each bound a column of the other."""
    steps = [step for own in spec.steps.values() for step in own]
    return len(spec.streams) == 2 and all(step.low is not None for step in steps)


def ranges_cost(spec: ThetaSpec, buckets: int) -> float:
    """Estimate what range routing costs a row, in messages; tables cost as much as one.

    A row whose range has two ends, as in bands and intervals, is sent to its unit and to one more.
    Where no range has, a row reaches half of all units.
    """
    is_narrow = any(_is_two_sided(own[0]) for own in spec.steps.values())
    return 1 + (1 if is_narrow else buckets / 2) + _TABLES_COST


@dataclass(frozen=True)
class ThetaRanges(RangeRouting):
    """Made by ``ThetaRanges.for_spec``."""

    spec: ThetaSpec | None = None

    @classmethod
    def for_spec(cls, spec: ThetaSpec, buckets: int = 1) -> "ThetaRanges":
        """Route the rows of a join by its range columns. InvalidArgumentError unless it has two
        streams, and a range of a column of each."""
        if not has_ranges(spec):
            raise InvalidArgumentError(
                f"routing='ranges': {spec.on!r} has no range between two streams "
                f"({', '.join(spec.streams)}); leave it out"
            )
        one_sided = [name for name in spec.streams if not _is_two_sided(spec.steps[name][0])]
        return cls(tuple(spec.streams), buckets, frozenset(one_sided), spec)

    def keys_of(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The range column of the rows' own index, and where it may lie in rows of the other
        stream. Cost: a pass for each operator of the condition."""
        assert self.spec is not None
        (other,) = self.others[stream]
        toward, back = self.spec.steps[stream][0], self.spec.steps[other][0]
        assert toward.low is not None
        assert back.low is not None
        columns, count = partial(_own_column, rows), rows.num_rows
        value = back.low.part.values(columns, count)
        low, high, known = toward.low.limits(columns, count)
        if toward.high is not None:  # what an interval's upper end has to reach must be known too
            known &= toward.high.limits(columns, count)[2]
        if toward.low.takes_nan:  # NaN is above all bounds
            high = None
        none = pa.nulls(count, value.type)
        value = pc.if_else(pa.array(np.asarray(known, np.bool_)), value, none)
        found = [value, none if low is None else low, none if high is None else high]
        return pa.RecordBatch.from_arrays(found, names=["value", "low", "high"])


def _is_two_sided(step: Step) -> bool:
    return step.low is not None and bool(step.low.lower) and bool(step.low.upper)


def _own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    return rows.column(column.name)
