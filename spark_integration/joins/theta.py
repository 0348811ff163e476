"""Joins by any condition on Spark: what is evaluated here, and where rows go."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.from_clause import TwoSided
from lsmstate.joins.conditions.intervals import bounds_in
from lsmstate.joins.conditions.join_tree import SQL_NAMES
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import text_of
from lsmstate.joins.local.theta.range_routing import ThetaRanges, has_ranges, ranges_cost
from lsmstate.joins.options import Skew
from lsmstate.joins.protocols import Routing
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.routing.chosen import ROUTING, ChosenRouting
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.theta_router import ThetaRouting
from lsmstate.joins.specs.changes import OPERATION, operation_columns
from lsmstate.joins.specs.event_time import TimedThetaSpec, TimeOptions, time_bounds
from lsmstate.joins.specs.interval_warnings import warn_of_kept_rows
from lsmstate.joins.specs.one_key import Condition
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_choice import (
    AnySpec,
    asked_join,
    equalities_connect,
    finds_fewer,
    made_spec,
)
from lsmstate.joins.specs.theta_sides import ThetaFinalSpec, ThetaSides
from lsmstate.joins.specs.typed_condition import How
from lsmstate.spark_integration.catalyst.catalyst import is_classic
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    KEPT,
    OTHER_CONDITIONS,
    SKEW,
    with_pins,
)
from lsmstate.spark_integration.columns.schemas import arrow_schema
from lsmstate.spark_integration.joins.aggregated import GroupedResults, shown_streams
from lsmstate.spark_integration.joins.changes import (
    change_settings,
    joined_fields,
    pinned_conditions,
    refuse_result_time,
)
from lsmstate.spark_integration.joins.event_time import (
    TICK,
    ResultTimes,
    with_result_time,
    with_time,
    with_watermark,
)
from lsmstate.spark_integration.joins.final import refuse_time_of_final
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.residual_filter import (
    check_evaluated_here,
    filtered,
    left_to_spark,
)
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.shown_columns import narrow_operator, shown_columns
from lsmstate.spark_integration.joins.spec_operator import all_columns, pinned_inputs, plan_of
from lsmstate.spark_integration.joins.watermarks import (
    check_keeps_all,
    described,
    explained_time,
    timing_of,
    watermark_columns,
    watermark_missing,
    watermarked,
)
from lsmstate.spark_integration.plan.inputs import Inputs, UnfitInputError
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator


class AskedTime(NamedTuple):
    """What a join is told of time."""

    retention: Mapping[str, Any]
    late: str
    late_batches: int | None
    result_time: str | None


@dataclass(frozen=True)
class ThetaRequest:
    """The arguments of a join by any condition."""

    streams: Mapping[str, DataFrame]
    asked: TwoSided
    emit: str
    changes: Mapping[str, str] | None
    unmatched: str
    options: OperatorOptions
    skew: Skew
    pins: Mapping[str, str]
    most_results: float | None
    time: AskedTime
    grouped: GroupedResults | None = None
    """What the results are aggregated to; None: they are not."""
    wanted: Collection[Column] | None = None
    """The columns that the query above reads, if they are known."""

    def joined(self, operator: str) -> DataFrame:
        """Build the operator. ``operator``: the name of the function that the user called."""
        spark = next(iter(self.streams.values())).sparkSession
        try:
            inputs = Inputs.of(spark, self.streams, {name: [] for name in self.streams})
        except InvalidArgumentError as unfit:
            raise UnfitInputError(str(unfit)) from unfit
        rows = {plan.name: plan.rows for plan in inputs.plans}
        operations = operation_columns(rows, self.changes or {})
        here, residual = self._split(_stored(rows, operations))
        spec = self._spec(rows, here, residual)
        times = watermarked(rows, self.streams)
        warn_of_kept_rows(rows, self.asked.condition, times, watermark_missing, depth=3)
        theta = spec.theta
        kind, routing = self._routing(spec, self.options.buckets or default_buckets(spark))
        pinned: Mapping[str, Any] = {OTHER_CONDITIONS: list(residual) or None}
        if spec.sides is not None:
            pinned = pinned_conditions(residual, self.streams)
        settings = {
            # A later start is refused by the first that differs: what the caller wrote comes first.
            "streams": list(self.streams),
            "condition": theta.on,
            **pinned_inputs(inputs, self.options),
            **_type_settings(spec),
            **pinned,
            KEPT: described(spec.event_time),
            SKEW: None,
            ROUTING: kind,
            "forced shares": dict(self.skew.shares) if self.skew.shares is not None else None,
        }
        lines = [*spec.explained(), *map(left_to_spark, residual)]
        if spec.emits_changes:
            lines.append(f"results: column {OPERATION!r} is +I for a new one, -D for a retracted")
        if spec.event_time is not None:
            lines.append(explained_time(spec.event_time))
        lines.append(_explained(kind, routing, self.streams))
        plan = plan_of(
            *(spec, inputs, routing, self.options, with_pins(settings, self.pins), operator),
            "\n".join(lines),
            left_open=_left_open(routing),
        )
        late = LateRows.of(inputs.plans, spec.event_time, self.time.late_batches)
        if spec.sides is not None:
            plan = late.added_to(plan)
            of_sides = shown_streams(
                {name: theta.streams[name] for name in spec.sides.shown},
                emits_changes=spec.emits_changes,
            )
            if self.grouped is not None:
                return self.grouped.operator(
                    *(spec, plan, inputs, residual),
                    late=late,
                    most_results=self.most_results,
                    shown=of_sides,
                    unmatched=self.unmatched,
                )
            shown = shown_columns(self.wanted, of_sides, residual)
            function = run_join(
                spec,
                plan.inputs,
                unmatched=self.unmatched,
                late=late,
                most_results=self.most_results,
                shown=shown,
            )
            output = self._typed_output(spec, spec.sides)
            joined = narrow_operator(plan, inputs, function, output, shown)
            columns = {name: schema.names for name, schema in spec.streams.items()}
            return filtered(joined, columns, residual, others=[OPERATION], takes_back=True)
        columns = {n: f.columns for n, f in self.streams.items()}
        if self.grouped is not None:
            most = self.most_results
            if isinstance(spec, TimedThetaSpec):
                plan = with_time(late.added_to(plan), spec, None)
            return self.grouped.operator(spec, plan, inputs, residual, late=late, most_results=most)
        if isinstance(spec, TimedThetaSpec):
            return self._in_time(spec, inputs, late.added_to(plan), late, columns, residual)
        plan = replace(plan, parts=tuple(rows.values()))
        shown = shown_columns(self.wanted, rows, residual)
        most = self.most_results
        function = run_join(spec, plan.inputs, gives_picks=True, most_results=most, shown=shown)
        joined = narrow_operator(plan, inputs, function, all_columns(inputs), shown)
        return filtered(joined, columns, residual)

    def _in_time(
        self,
        spec: TimedThetaSpec,
        inputs: Inputs,
        plan: StatefulPlan,
        late: LateRows,
        columns: Mapping[str, Sequence[str]],
        residual: Sequence[str],
    ) -> DataFrame:
        """Build the inner join of the rows that event time keeps."""
        name = self.time.result_time
        plan = with_time(plan, spec, name)
        times = None if name is None else partial(ResultTimes, spec)
        function = run_join(
            spec, plan.inputs, late=late, result_times=times, most_results=self.most_results
        )
        output = with_result_time(all_columns(inputs), self.streams, name)
        joined = stateful_operator(plan, inputs, function, output)
        if name is None:
            return filtered(joined, columns, residual)
        joined = filtered(joined, columns, residual, others=(name, TICK), unless=TICK)
        return with_watermark(joined, name)

    def _spec(
        self, rows: Mapping[str, pa.Schema], here: Sequence[str], residual: Sequence[str]
    ) -> AnySpec:
        """What is joined, with the event times of the inputs' watermarks."""
        time, condition = self.time, " AND ".join(here) or "TRUE"
        told = TimeOptions(watermarked(rows, self.streams), time.retention, time.late)
        asked = self.asked._replace(condition=condition)
        is_inner = asked.kind == "inner" and not self.changes and self.emit != "changes"
        if is_inner:
            theta = ThetaSpec.create(rows, condition)
            conjuncts = [*map(text_of, theta.conjuncts), *residual]
            timing = timing_of(
                *(theta, self.streams, conjuncts, time.retention, time.late, time.result_time)
            )
            return theta if timing is None else TimedThetaSpec(theta, timing)
        spec = made_spec(rows, asked, self.emit, self.changes, told)
        if isinstance(spec, ThetaFinalSpec):
            refuse_time_of_final(time.result_time)
        elif spec.event_time is None:
            check_keeps_all(time.retention, time.late, time.result_time)
        else:
            refuse_result_time(time.result_time)
        return spec

    def _typed_output(self, spec: AnySpec, sides: ThetaSides) -> T.StructType:
        """The columns of the result as Spark sees them."""
        stored = {
            name: T.StructType(
                [f for f in self.streams[name].schema if f.name != spec.operations.get(name)]
            )
            for name in sides.shown
        }
        fields = [T.StructField(OPERATION, T.StringType(), False)] if spec.emits_changes else []
        return T.StructType([*fields, *joined_fields(stored, sides.nullable)])

    def _split(self, rows: Mapping[str, pa.Schema]) -> tuple[list[str], tuple[str, ...]]:
        """The conjuncts that are evaluated here just as by Spark, and those that Spark filters.
        InvalidArgumentError for one of them in a join that is not inner."""
        here: list[str] = []
        residual: list[str] = []
        columns = {name: list(frame.columns) for name, frame in self.streams.items()}
        for written in parse_conjuncts(self.asked.condition, columns):
            condition = PairCondition(written.predicate)
            try:
                condition.check(rows)
                check_evaluated_here([condition], self.streams)
            except InvalidArgumentError:
                # Spark knows nothing of windows.
                is_window = any(bound.slide_us for bound in bounds_in(written.predicate))
                if self.asked.kind != "inner" or is_window:
                    raise
                residual.append(written.text)
            else:
                here.append(text_of(written.predicate))
        return here, tuple(residual)

    def _routing(self, spec: AnySpec, buckets: int) -> tuple[str, Routing]:
        theta, sides = spec.theta, spec.sides
        given = self.skew.rows or {}
        for name in given:
            theta.check_stream(name)
        largest = max(given.values(), default=1)
        rows = {name: given.get(name, largest) for name in theta.streams}
        equal = theta.equal_parts()
        common = [each for each in equal if len(each) == len(rows)]
        is_typed, counted = sides is not None, sides.counted if sides is not None else ()
        kind = self.skew.routing
        if kind is None and not common and len(rows) == 2 and buckets > 1 and not is_typed:
            spark = next(iter(self.streams.values())).sparkSession
            chosen = _cheapest(theta, rows, buckets, is_classic=is_classic(spark))
            return chosen.name, chosen
        kind = kind or ("hash" if common else "shares")
        if kind in ("biclique", "ranges"):
            self._check_stores_once(kind, is_typed)
            if kind == "biclique":
                groups = common[0] if common and len(rows) == 2 else None
                return kind, BicliqueRouting.of(rows, buckets, groups)
            return kind, ThetaRanges.for_spec(theta)
        if kind == "hash":
            if not common:
                raise InvalidArgumentError(
                    f"routing='hash': no equality of {theta.on!r} is of all streams "
                    f"{', '.join(rows)}; give 'shares', or leave routing out"
                )
            equal = (common[0],)
        if counted and not common and len(counted) == 2 and buckets > 1:
            raise InvalidArgumentError(
                f"no equality by which each row of {' and '.join(map(repr, counted))} and all its "
                f"partners lie in one bucket, in {theta.on!r}; give buckets=1 (one task does all "
                "the work), add an equality, or join two queries by LEFT and RIGHT JOIN"
            )
        if counted:  # what says whether a row has a partner lies where the row does
            equal = tuple(common)
        parts = {str(next(iter(each.values()))): each for each in equal}
        classes = {name: tuple(each) for name, each in parts.items()}
        held = {stream for streams in classes.values() for stream in streams}
        dealt = [name for name in rows if name not in held and (name in counted or not counted)]
        classes |= {f"rows of {name}": (name,) for name in dealt}
        graph = JoinGraph(rows=rows, classes=classes)
        routing = ThetaRouting(graph, choose(graph, buckets, self.skew.shares), parts)
        if sides is not None:
            alone = frozenset(name for name in rows if sides.shows_alone(name))
            routing = replace(routing, routes_null_keys=alone, operations=spec.operations)
        return kind, routing

    def _check_stores_once(self, kind: str, is_typed: bool) -> None:
        """InvalidArgumentError if a routing that stores each row in one bucket does not fit."""
        if self.skew.shares is not None:
            raise InvalidArgumentError(
                f"shares={self.skew.shares!r}: routing={kind!r} stores each row once, so there "
                "is nothing to share; leave shares out, or give routing='shares'"
            )
        if is_typed:
            raise InvalidArgumentError(
                f"routing={kind!r} with {SQL_NAMES[self.asked.kind]}, emit={self.emit!r}: a row "
                "and all its partners have to lie in one bucket; give 'shares', or leave it out"
            )


def _type_settings(spec: AnySpec) -> dict[str, Any]:
    """What the checkpoint pins of types of joins and of changelogs."""
    sides = spec.sides
    if sides is None:
        return change_settings(None)
    told = spec.described()
    return {
        "joins other than inner": None if sides.kind == "inner" else told["joins"],
        "changelog inputs": told["changelogs"] or None,
        "emit": told["emit"],
    }


def _stored(rows: Mapping[str, pa.Schema], operations: Mapping[str, str]) -> dict[str, pa.Schema]:
    return {
        name: pa.schema([field for field in schema if field.name != operations.get(name)])
        for name, schema in rows.items()
    }


def any_condition(
    streams: Mapping[str, DataFrame],
    on: Condition,
    how: How,
    emit: str,
    changes: Mapping[str, str] | None,
    skew: Skew,
    retention: Mapping[str, Any],
    *,
    is_aggregated: bool = False,
) -> TwoSided | None:
    """The join if it is by any condition: no equality connects all streams, a range beside an
    equality of two streams finds fewer rows, or a routing is asked for. None for joins by keys.

    Args:
        streams: The inputs.
        on: The condition.
        how: Types of the joins.
        emit: What the results are.
        changes: Operation columns.
        skew: As the user gave it.
        retention: As the user gave it.
        is_aggregated: Whether results are aggregated inside the join, which then takes a range
            with one end.

    Raises:
        InvalidArgumentError: An option does not fit.
    """
    routing, hot_keys = skew.routing, skew.hot_keys
    if routing == "worksets":
        raise InvalidArgumentError(
            "routing='worksets': only similarity_join stores near rows in one bucket; give another "
            "one, or leave routing out"
        )
    columns = {name: list(frame.schema.names) for name, frame in streams.items()}
    try:
        asked = asked_join(columns, on, how)
    except InvalidArgumentError:
        asked = None  # the join by keys tells what does not fit
    if asked is None:
        if routing is not None:
            raise InvalidArgumentError(
                f"routing={routing!r} applies to joins whose condition is text: inner joins, and "
                "other joins of two streams; leave routing out"
            )
        return None
    is_keyed = equalities_connect(asked.condition, columns)
    if routing is None and is_keyed:
        is_fit = len(streams) == 2 and hot_keys is None and not retention
        if is_fit and _finds_fewer(streams, asked, emit, changes, is_aggregated=is_aggregated):
            return asked
        return None
    if hot_keys is not None:
        raise InvalidArgumentError(
            f"hot_keys={hot_keys!r}: no equality connects all of the streams "
            f"{', '.join(columns)} in {asked.condition!r}, or a routing is given, and hot keys are "
            "those of equalities; leave hot_keys out, or connect the streams by equalities"
        )
    return asked


def _finds_fewer(
    streams: Mapping[str, DataFrame],
    asked: TwoSided,
    emit: str,
    changes: Mapping[str, str] | None,
    *,
    is_aggregated: bool,
) -> bool:
    """Whether a range beside an equality finds fewer rows than the equality alone."""
    try:
        rows = {name: arrow_schema(name, frame.schema) for name, frame in streams.items()}
        spec = made_spec(rows, asked, emit, changes, TimeOptions({}, {}, "drop"))
        theta = spec.theta
        check_evaluated_here([PairCondition(each) for each in theta.conjuncts], streams)
    except InvalidArgumentError:
        return False  # the join by keys leaves more to Spark, and tells what does not fit
    bounds, _ = time_bounds(theta.streams, map(text_of, theta.conjuncts))
    if bounds and watermark_columns(streams):
        return False  # by which it forgets rows
    return finds_fewer(spec, is_aggregated=is_aggregated)


def _cheapest(
    spec: ThetaSpec, rows: Mapping[str, int], buckets: int, *, is_classic: bool
) -> ChosenRouting:
    """The routings of two streams without a common key, with what they cost. Under Spark Connect
    nothing tells the starts of a query apart, by which tables of ranges count."""
    biclique = BicliqueRouting.of(rows, buckets)
    candidates: dict[str, Routing] = {"biclique": biclique}
    costs = {"biclique": biclique.messages(rows)}
    if has_ranges(spec) and is_classic:
        candidates["ranges"] = ThetaRanges.for_spec(spec)
        costs["ranges"] = ranges_cost(spec, buckets)
    return ChosenRouting(candidates, costs)


def _left_open(routing: Routing) -> dict[str, list[str]]:
    if isinstance(routing, ChosenRouting):
        return {ROUTING: list(routing.candidates)}
    return {}


def _explained(kind: str, routing: Routing, streams: Mapping[str, DataFrame]) -> str:
    if isinstance(routing, ChosenRouting):
        told = _explained(kind, routing.chosen, streams)
        costs = " and ".join(f"{name} {cost:g}" for name, cost in routing.costs.items())
        if len(routing.costs) == 1:
            return told
        return (
            f"{told}\n  chosen by its cost in messages a row ({costs}); a query that has state "
            "goes on with the routing of its first start"
        )
    if isinstance(routing, BicliqueRouting):
        first, second = routing.units
        m, n = (routing.units[name][1] for name in (first, second))
        d, e = (routing.groups.get(name, 1) for name in (first, second))
        of = f" in {d} and {e} groups by {routing.parts[first]}" if routing.groups else ""
        return (
            f"routing biclique: {m} buckets for {first}, {n} for {second}{of}; a row of {first} is "
            f"sent to {n / e + 1:g} buckets and a row of {second} to {m / d + 1:g}, and each is "
            "stored once"
        )
    if isinstance(routing, ThetaRanges):
        return (
            "routing ranges: a row is stored in the bucket of its range, and sent to those that "
            "its bounds reach; cut points follow the rows"
        )
    assert isinstance(routing, ThetaRouting)
    return f"routing {kind}: {routing.shares.explain()}"
