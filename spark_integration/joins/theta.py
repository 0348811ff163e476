"""Inner joins by any condition on Spark: what is evaluated here, and where rows go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.from_clause import inner_condition, is_from_clause
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import text_of
from lsmstate.joins.local.theta.range_routing import ThetaRanges
from lsmstate.joins.options import Skew
from lsmstate.joins.protocols import Routing
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.theta_router import ThetaRouting
from lsmstate.joins.specs.one_key import Condition
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_choice import equalities_connect, is_outer
from lsmstate.joins.specs.typed_condition import How
from lsmstate.spark_integration.checkpoint.pinned_settings import (
    KEPT,
    OTHER_CONDITIONS,
    SKEW,
    with_pins,
)
from lsmstate.spark_integration.joins.changes import change_settings
from lsmstate.spark_integration.joins.residual_filter import check_evaluated_here, filtered
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.spec_operator import all_columns, pinned_inputs, plan_of
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator


@dataclass(frozen=True)
class ThetaRequest:
    """The arguments of a join by any condition."""

    streams: Mapping[str, DataFrame]
    on: str
    options: OperatorOptions
    skew: Skew
    pins: Mapping[str, str]
    most_results: float | None

    def joined(self, operator: str) -> DataFrame:
        """Build the operator. ``operator``: the name of the function that the user called."""
        spark = next(iter(self.streams.values())).sparkSession
        inputs = Inputs.of(spark, self.streams, {name: [] for name in self.streams})
        rows = {plan.name: plan.rows for plan in inputs.plans}
        here, residual = self._split(rows)
        spec = ThetaSpec.create(rows, " AND ".join(here) or "TRUE")
        kind, routing = self._routing(spec, self.options.buckets or default_buckets(spark))
        settings = {
            # A later start is refused by the first that differs: what the caller wrote comes first.
            "streams": list(self.streams),
            "condition": spec.on,
            **pinned_inputs(inputs, self.options),
            **change_settings(None),
            OTHER_CONDITIONS: list(residual) or None,
            KEPT: None,
            SKEW: None,
            "routing": kind,
            "forced shares": dict(self.skew.shares) if self.skew.shares is not None else None,
        }
        lines = [*spec.explained(), *(f"condition {c}: left to Spark" for c in residual)]
        lines.append(_explained(kind, routing, self.streams))
        plan = plan_of(
            *(spec, inputs, routing, self.options, with_pins(settings, self.pins), operator),
            "\n".join(lines),
        )
        plan = replace(plan, parts=tuple(rows.values()))
        function = run_join(spec, plan.inputs, gives_picks=True, most_results=self.most_results)
        joined = stateful_operator(plan, inputs, function, all_columns(inputs))
        return filtered(joined, {n: f.columns for n, f in self.streams.items()}, residual)

    def _split(self, rows: Mapping[str, pa.Schema]) -> tuple[list[str], tuple[str, ...]]:
        """The conjuncts that are evaluated here just as by Spark, and those that Spark filters."""
        here: list[str] = []
        residual: list[str] = []
        for written in parse_conjuncts(self.on, {name: s.names for name, s in rows.items()}):
            condition = PairCondition(written.predicate)
            try:
                condition.check(rows)
                check_evaluated_here([condition], self.streams)
            except InvalidArgumentError:
                residual.append(written.text)
            else:
                here.append(text_of(written.predicate))
        return here, tuple(residual)

    def _routing(self, spec: ThetaSpec, buckets: int) -> tuple[str, Routing]:
        given = self.skew.rows or {}
        for name in given:
            spec.check_stream(name)
        largest = max(given.values(), default=1)
        rows = {name: given.get(name, largest) for name in spec.streams}
        equal = spec.equal_parts()
        common = [each for each in equal if len(each) == len(rows)]
        kind = self.skew.routing or _chosen(len(rows), buckets, has_common=bool(common))
        if kind in ("biclique", "ranges"):
            if self.skew.shares is not None:
                raise InvalidArgumentError(
                    f"shares={self.skew.shares!r}: routing={kind!r} stores each row once, so there "
                    "is nothing to share; leave shares out, or give routing='shares'"
                )
            if kind == "biclique":
                return kind, BicliqueRouting.of(rows, buckets)
            return kind, ThetaRanges.for_spec(spec)
        if kind == "hash":
            if not common:
                raise InvalidArgumentError(
                    f"routing='hash': no equality of {self.on!r} is of all streams "
                    f"{', '.join(rows)}; give 'shares', or leave routing out"
                )
            equal = (common[0],)
        parts = {str(next(iter(each.values()))): each for each in equal}
        classes = {name: tuple(each) for name, each in parts.items()}
        held = {stream for streams in classes.values() for stream in streams}
        classes |= {f"rows of {name}": (name,) for name in rows if name not in held}
        graph = JoinGraph(rows=rows, classes=classes)
        return kind, ThetaRouting(graph, choose(graph, buckets, self.skew.shares), parts)


def any_condition(
    streams: Mapping[str, DataFrame],
    on: Condition,
    how: How,
    emit: str,
    changes: Mapping[str, str] | None,
    routing: str | None,
    unfit: Mapping[str, Any],
) -> str | None:
    """The condition if the join is by any condition: no equality connects all streams, or a routing
    is asked for. None for joins by keys.

    Args:
        streams: The inputs.
        on: The condition.
        how: Types of the joins.
        emit: What the results are.
        changes: Operation columns.
        routing: As the user gave it.
        unfit: Options that such a join does not have, with what was given for them.

    Raises:
        InvalidArgumentError: An option does not fit.
    """
    columns = {name: list(frame.schema.names) for name, frame in streams.items()}
    if isinstance(on, str) and is_from_clause(on) and not is_outer(how):
        on = _without_joins(on, columns)
    is_text = isinstance(on, str) and not is_from_clause(on) and not is_outer(how)
    if not is_text:
        if routing is not None:
            raise InvalidArgumentError(
                f"routing={routing!r} applies to inner joins whose condition is text of conditions "
                "joined by AND; leave routing out"
            )
        return None
    assert isinstance(on, str)
    if routing is None and equalities_connect(on, columns):
        return None
    is_plain = emit in ("append", "final") and not changes
    given = {**unfit, "changes": changes, "emit": None if is_plain else emit}
    for name, value in given.items():
        if value is not None:
            raise InvalidArgumentError(
                f"{name}={value!r}: no equality connects all of the streams {', '.join(columns)} "
                f"in {on!r}, or a routing is given, and such a join keeps all its rows and "
                f"retracts no result; leave {name} out, or connect the streams by equalities"
            )
    return on


def _without_joins(on: str, columns: Mapping[str, Sequence[str]]) -> str:
    """A FROM clause of inner joins as a condition; as it is if it has another join, or functions
    that only Spark knows."""
    try:
        return inner_condition(on, columns) or on
    except InvalidArgumentError:
        return on  # the join by keys tells what does not fit


def _chosen(streams: int, buckets: int, *, has_common: bool) -> str:
    if has_common:
        return "hash"
    return "biclique" if streams == 2 and buckets > 1 else "shares"


def _explained(kind: str, routing: Routing, streams: Mapping[str, DataFrame]) -> str:
    if isinstance(routing, BicliqueRouting):
        first, second = routing.units
        m, n = (routing.units[name][1] for name in (first, second))
        return (
            f"routing biclique: {m} buckets for {first}, {n} for {second}; a row of {first} is "
            f"sent to {n + 1} buckets and a row of {second} to {m + 1}, and each is stored once"
        )
    if isinstance(routing, ThetaRanges):
        return (
            "routing ranges: a row is stored in the bucket of its range, and sent to those that "
            "its bounds reach; cut points follow the rows"
        )
    assert isinstance(routing, ThetaRouting)
    return f"routing {kind}: {routing.shares.explain()}"
