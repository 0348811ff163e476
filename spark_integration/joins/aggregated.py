"""Results that leave a join as partial aggregates.

The state and the settings of such a join are those of the same join without aggregates, so either
goes on with what the other stored.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.protocols import Spec
from lsmstate.joins.specs.aggregates import OPERATION_STREAM, Aggregates
from lsmstate.joins.specs.changes import OPERATION
from lsmstate.spark_integration.catalyst.catalyst import (
    ColumnIds,
    analyzed_plan,
    column_ids,
    is_same_plan,
)
from lsmstate.spark_integration.joins.late_rows import NO_LATE_ROWS, LateRows
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import stateful_operator

#: The part of the cap that groups may take before they are handed out.
_GROUPS_SHARE: Final = 16
#: How many joins are known by their results, beside those of SQL.
_MOST_KNOWN: Final = 32


class UngroupedError(InvalidArgumentError):
    """Why the results of a join are not aggregated inside it."""


@dataclass(frozen=True)
class KnownJoin:
    """A join that was made, and may be made again with partial aggregates or fewer columns for
    results."""

    streams: Mapping[str, DataFrame]
    columns: Mapping[Column, T.StructField]
    """Those of a result, in their order. The operation is one of OPERATION_STREAM."""
    grouped: "Callable[[GroupedResults], DataFrame]"
    narrowed: Callable[[Sequence[Column]], DataFrame | None]
    """Makes it with some columns for results; None if all of them would leave it all the same."""


#: Joins, each with the analyzed plan of its result.
_known: OrderedDict[ColumnIds, tuple[KnownJoin, Any]] = OrderedDict()


def remember(result: DataFrame, join: KnownJoin) -> None:
    """Know the join by its result. The oldest of many is forgotten."""
    _known[column_ids(result)] = join, analyzed_plan(result)
    if len(_known) > _MOST_KNOWN:
        _known.popitem(last=False)


def known_join(ids: ColumnIds, plan: Callable[[], Any]) -> KnownJoin | None:
    """The join whose result a plan with these columns is. A filter of the result, or its distinct
    rows, have the same columns, and are none."""
    if ids not in _known:
        return None
    join, result = _known[ids]
    return join if is_same_plan(result, plan()) else None


@dataclass(frozen=True)
class GroupedResults:
    """What results are aggregated to."""

    aggregates: Aggregates
    output: T.StructType
    """The columns ``aggregates.schema`` as Spark has them."""

    def operator(
        self,
        spec: Spec,
        plan: StatefulPlan,
        inputs: Inputs,
        residual: Sequence[str],
        *,
        late: LateRows = NO_LATE_ROWS,
        most_results: float | None = None,
        shown: Mapping[str, pa.Schema] | None = None,
        unmatched: str = "count",
    ) -> DataFrame:
        """Make an operator of a join.

        Args:
            spec: The join.
            plan: Its plan, as if its results were not aggregated.
            inputs: Its inputs.
            residual: Conditions that are left to Spark.
            late: What becomes of late rows.
            most_results: Most results for each row of a batch.
            shown: The streams and columns of a result; None: all of the inputs.
            unmatched: What becomes of a retraction of a row that is not stored.

        Returns:
            For each micro-batch and bucket one row per group, more if the groups take more than a
            sixteenth of the memory cap.

        Raises:
            UngroupedError: A condition is left to Spark.
        """
        if residual:
            raise UngroupedError(f"{residual[0]} is left to Spark, which judges each result by it")
        streams = shown or {source.name: source.rows for source in inputs.plans}
        plan = replace(plan, output=self.aggregates.schema(streams), parts=())
        groups = partial(Groups, self.aggregates, streams, plan.memory_bytes // _GROUPS_SHARE)
        function = run_join(
            spec,
            plan.inputs,
            unmatched=unmatched,
            late=late,
            most_results=most_results,
            groups=groups,
        )
        return stateful_operator(plan, inputs, function, self.output)


def shown_streams(rows: Mapping[str, pa.Schema], *, emits_changes: bool) -> Mapping[str, pa.Schema]:
    """The streams of a result, whose columns stand side by side, with that of the operation."""
    operation = {OPERATION_STREAM: pa.schema([(OPERATION, pa.string())])} if emits_changes else {}
    return {**operation, **rows}
