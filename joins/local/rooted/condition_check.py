"""The conditions of a tree of joins, checked on results that have a row of every stream."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.local.parts.time_checks import result_columns
from lsmstate.joins.specs.multi_key import GraphSpec


class ConditionCheck:
    """Which rows of a result with a row of every stream keep all conditions."""

    def __init__(self, spec: GraphSpec, conditions: Sequence[PairCondition]) -> None:
        self._names = result_columns(spec)
        self._conditions = tuple(conditions)

    def keep(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Only those rows. Cost: a few vector operations a condition."""
        if not self._conditions:
            return rows
        found = [c.holds(lambda column: rows[self._names[column]]) for c in self._conditions]
        kept = np.logical_and.reduce(found)
        return rows if kept.all() else rows.filter(pa.array(kept))
