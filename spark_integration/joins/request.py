"""The checked arguments of multiway_join, and the forms in which the operator is built."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.protocols import Spec
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.joins.routing.skew.spread_router import SpreadRouting
from lsmstate.joins.specs.changes import OPERATION
from lsmstate.joins.specs.choose import ChangingSpec
from lsmstate.joins.specs.event_time import TimedSpec
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.within import without_windows
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    KEPT,
    OTHER_CONDITIONS,
    SKEW,
    with_pins,
)
from lsmstate.spark_integration.joins.aggregated import GroupedResults, shown_streams
from lsmstate.spark_integration.joins.changes import (
    change_output,
    change_settings,
    conditions_beside,
    explained,
    pinned_conditions,
    written_conditions,
)
from lsmstate.spark_integration.joins.co_location import meeting
from lsmstate.spark_integration.joins.event_time import (
    TICK,
    ResultTimes,
    with_result_time,
    with_time,
    with_watermark,
)
from lsmstate.spark_integration.joins.final import (
    explained_final,
    final_output,
    final_settings,
)
from lsmstate.spark_integration.joins.inner import condition_of
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.residual_filter import filtered, left_to_spark
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.shares import with_shares
from lsmstate.spark_integration.joins.shown_columns import narrow_operator, shown_columns
from lsmstate.spark_integration.joins.spec_operator import all_columns, pinned_inputs, plan_of
from lsmstate.spark_integration.joins.watermarks import described, explained_time
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.plan.storage import Storage
from lsmstate.spark_integration.skew.checks import explained_skew
from lsmstate.spark_integration.skew.key_watch import SPREAD

OPERATOR: Final = "multiway_join"


@dataclass(frozen=True)
class JoinRequest:
    """The parts that every form of the join needs."""

    streams: Mapping[str, DataFrame]
    inputs: Inputs
    residual: tuple[str, ...]
    """Conditions beside the equalities of keys and the intervals."""
    options: OperatorOptions
    storage: Storage
    rows: Mapping[str, int] | None
    """Rows per stream, in proportion."""
    shares: Mapping[str, int] | None
    pins: Mapping[str, str]
    skew: str | None = None
    late_batches: int | None = None
    """For how many micro-batches late rows are kept."""
    grouped: GroupedResults | None = None
    """What the results are aggregated to; None: they are not."""
    wanted: Collection[StreamColumn] | None = None
    """The columns that the query above reads, if they are known."""

    def full_history(self, spec: JoinSpec | GraphSpec) -> DataFrame:
        """Build the inner join of all rows."""
        if self.grouped is not None:
            plan = self._inner_plan(spec)
            return self.grouped.operator(spec, plan, self.inputs, self.residual)
        plan = replace(self._inner_plan(spec), parts=tuple(spec.shown_rows.values()))
        shown = shown_columns(self.wanted, spec.shown_rows, self.residual)
        function = run_join(spec, plan.inputs, gives_picks=True, shown=shown)
        joined = narrow_operator(plan, self.inputs, function, self._inner_output(), shown)
        return filtered(joined, self._columns, self.residual)

    def inner(self, spec: JoinSpec | GraphSpec) -> "InnerJoin":
        """The inner join by its equalities alone, before an operator is made of it."""
        plan = self._inner_plan(spec)
        function = run_join(spec, plan.inputs)
        return InnerJoin(plan, self.inputs, function, self._inner_output())

    def in_time(self, spec: TimedSpec, result_time: str | None) -> DataFrame:
        """Build the inner join of the rows that event time keeps."""
        late = LateRows.of(self.inputs.plans, spec.event_time, self.late_batches)
        plan = late.added_to(with_time(self._inner_plan(spec), spec, result_time))
        if self.grouped is not None:
            left = without_windows(self.residual, self._columns)
            return self.grouped.operator(spec, plan, self.inputs, left, late=late)
        times = None if result_time is None else partial(ResultTimes, spec)
        left = without_windows(self.residual, self._columns)
        rows = {source.name: source.rows for source in self.inputs.plans}
        shown = shown_columns(self.wanted, rows, left) if result_time is None else None
        function = run_join(spec, plan.inputs, late=late, result_times=times, shown=shown)
        output = with_result_time(self._inner_output(), self.streams, result_time)
        joined = narrow_operator(plan, self.inputs, function, output, shown)
        if result_time is None:
            return filtered(joined, self._columns, left)
        added = (result_time, TICK)
        joined = filtered(joined, self._columns, left, others=added, unless=TICK)
        return with_watermark(joined, result_time)

    def changing(self, spec: ChangingSpec, unmatched: str) -> DataFrame:
        """Build the join of other types or of changelogs."""
        rest = conditions_beside(self.inputs, self.residual)
        settings = {**change_settings(spec), **pinned_conditions(rest, self.streams)}
        plan = self._plan(spec, settings)
        graph = spec.graph
        if graph is None:
            plan = replace(plan, routing=HashRouting(routes_null_keys=spec.preserved))
        elif spec.parts is not None:
            plan = meeting(plan, graph, spec.parts, self.rows or {}, self.shares)
        elif self.inputs.has_several_keys:
            plan = with_shares(plan, graph, self.rows or {}, self.shares)
        schemas = {name: frame.schema for name, frame in self.streams.items()}
        late = LateRows.of(self.inputs.plans, spec.event_time, self.late_batches)
        plan = late.added_to(_explaining(plan, explained(spec)))
        rows = shown_streams(_shown_rows(spec), emits_changes=spec.emits_changes)
        if self.grouped is not None:
            return self.grouped.operator(
                *(spec, plan, self.inputs, rest), late=late, shown=rows, unmatched=unmatched
            )
        shown = shown_columns(self.wanted, rows, rest)
        function = run_join(spec, plan.inputs, unmatched=unmatched, late=late, shown=shown)
        joined = narrow_operator(plan, self.inputs, function, change_output(spec, schemas), shown)
        columns = {
            name: [column for column in frame.columns if column != spec.operations.get(name)]
            for name, frame in self.streams.items()
        }
        return filtered(joined, columns, rest, others=[OPERATION], takes_back=True)

    def final(self, spec: FinalSpec) -> DataFrame:
        """Build the join of other types whose results come once."""
        plan = self._plan(spec, final_settings(spec))
        plan = meeting(plan, spec.graph, spec.parts, self.rows or {}, self.shares)
        schemas = {name: frame.schema for name, frame in self.streams.items()}
        late = LateRows.of(self.inputs.plans, spec.event_time, self.late_batches)
        plan = late.added_to(_explaining(plan, explained_final(spec)))
        rows = _shown_rows(spec)
        if self.grouped is not None:
            return self.grouped.operator(spec, plan, self.inputs, (), late=late, shown=rows)
        shown = shown_columns(self.wanted, rows, ())
        function = run_join(spec, plan.inputs, late=late, shown=shown)
        return narrow_operator(plan, self.inputs, function, final_output(spec, schemas), shown)

    @property
    def _columns(self) -> dict[str, list[str]]:
        return {name: frame.columns for name, frame in self.streams.items()}

    def _inner_plan(self, spec: JoinSpec | GraphSpec | TimedSpec) -> StatefulPlan:
        conditions = written_conditions(self.inputs, self.residual)
        settings = {**change_settings(None), OTHER_CONDITIONS: conditions or None}
        plan = self._plan(spec, settings)
        if spec.graph is not None:
            plan = with_shares(plan, spec.graph, self.rows or {}, self.shares)
        rest: Sequence[str] = self.residual
        if spec.event_time is not None:  # intervals say what is forgotten
            rest = conditions_beside(self.inputs, self.residual)
        told = [explained_time(spec.event_time), *map(left_to_spark, rest)]
        return _explaining(plan, "\n".join(told))

    def _plan(self, spec: Spec, types: Mapping[str, Any]) -> StatefulPlan:
        condition = condition_of(self.inputs)
        settings = {
            # A later start is refused by the first that differs: what the caller wrote comes first.
            "streams": list(self.streams),
            "condition": condition,
            **pinned_inputs(self.inputs, self.options),
            **types,
            KEPT: described(spec.event_time),
            SKEW: self.skew,
        }
        return plan_of(
            spec,
            self.inputs,
            SpreadRouting(tuple(self.streams)) if self.skew == SPREAD else HashRouting(),
            self.options,
            with_pins(settings, self.pins),
            OPERATOR,
            f"one key: {condition}\neach row goes to the bucket of its key"
            + explained_skew(self.skew, len(self.streams)),
            skew=self.skew,
        )

    def _inner_output(self) -> T.StructType:
        return all_columns(self.inputs)


@dataclass(frozen=True)
class InnerJoin:
    """The arguments of ``stateful_operator`` for an inner join."""

    plan: StatefulPlan
    inputs: Inputs
    function: BucketFunction
    output: T.StructType


def _shown_rows(spec: ChangingSpec | FinalSpec) -> Mapping[str, pa.Schema]:
    """The columns of each stream that are part of a result."""
    rows = spec.streams if spec.graph is None else spec.graph.shown_rows
    return {name: rows[name] for name in spec.shown}


def _explaining(plan: StatefulPlan, more: str) -> StatefulPlan:
    return replace(plan, explanation=f"{plan.explanation}\n{more}")
