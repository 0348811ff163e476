"""The conditions of a tree of joins, checked on results that have a row of every stream."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.local.parts.time_checks import result_columns
from lsmstate.joins.specs.multi_key import GraphSpec


class ConditionCheck:
    """Which rows of a result with a row of every stream keep all conditions."""

    def __init__(self, spec: GraphSpec, conditions: Sequence[PairCondition]) -> None:
        self._names = result_columns(spec)
        self._conditions = tuple(conditions)

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Only those rows. A condition is judged on rows that keep those before it, as AND says.
        Cost: a few vector operations a condition."""
        for condition in self._conditions:
            kept = condition.holds(partial(self._column, rows))
            rows = rows if kept.all() else rows.filter(pa.array(kept))
        return rows

    def _column(self, rows: pa.RecordBatch, column: Column) -> pa.Array:
        return rows[self._names[column]]
