"""The conversion of one query: which group of joins is merged, and whether Spark takes the
result."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.plan.conditions import Column
from lsmstate.joins.plan.explain import explain
from lsmstate.joins.plan.join_tree import MultiJoin, Node, Other, is_streaming, parents_first
from lsmstate.joins.plan.prune import pruned
from lsmstate.joins.plan.pushed_aggregates import (
    JoinAggregate,
    aggregates_of_joins,
    explained_aggregate,
    explained_columns,
)
from lsmstate.joins.plan.ranges import with_ranges
from lsmstate.joins.plan.tsc import (
    Conversion,
    GroupRule,
    any_keys,
    inner_join_of_streams,
    two_step_convert,
)
from lsmstate.joins.plan.unions import unions_of_joins, with_joins_gathered
from lsmstate.spark_integration.catalyst.catalyst import OUTPUT_MODES, Catalyst, analyzed_plan
from lsmstate.spark_integration.catalyst.plan_nodes import NodeHandle
from lsmstate.spark_integration.joins.aggregated import (
    GroupedResults,
    KnownJoin,
    known_join,
)
from lsmstate.spark_integration.joins.shares import explain_join
from lsmstate.spark_integration.plan.inputs import UnfitInputError
from lsmstate.spark_integration.sql.aggregates import NotPushedError, SparkJoin, write_aggregate
from lsmstate.spark_integration.sql.join_groups import (
    RangeNotUsedError,
    check_range,
    fits_several_groups,
    joined_frames,
    joined_groups,
    result_columns,
    streams_of,
)
from lsmstate.spark_integration.sql.plan_reader import ReadPlan, read_plan
from lsmstate.spark_integration.sql.plan_writer import PlanWriter, Written
from lsmstate.spark_integration.sql.union_joins import write_union
from lsmstate.spark_integration.sql.watermarks import (
    mode_bound_below,
    redeclares_watermark,
    stateful_above,
)
from lsmstate.spark_integration.stateful_operator.query_start import operators_in

#: Which of its branches ``lsmstate.joins.plan.unions`` takes.
_UNITED: Final = (
    "branches that are joins under filters and projections, without random values, subqueries, "
    "Python functions or a column that is selected twice"
)

#: Why Spark does not stream a plan in an output mode; None if it does.
Refusal = Callable[[str], str | None]


@dataclass(frozen=True)
class Converted:
    """The result of a conversion."""

    dataframe: DataFrame | None
    """As it is to be run; None if Spark refuses to stream it."""
    is_converted: bool
    note: str
    """Why joins were left to Spark; empty if all that could be were merged."""
    refusal: str
    """Spark's reason where ``dataframe`` is None."""
    conversion: Conversion | None
    update_as_append: bool = False
    """Whether it is to be run in append mode where update is asked for: the rows are the same."""
    aggregates: tuple[str, ...] = ()
    """What became of each aggregate above a merged join."""
    columns: str = ""
    """How many columns of results leave the operator; empty: all that enter it, or no row does."""

    def explained(self) -> str:
        parts = [explain(self.conversion)] if self.conversion is not None else []
        if self.is_converted and self.dataframe is not None:
            lines = explain_join(self.dataframe).splitlines()
            parts += ["Operator", *(f"  {line}" for line in lines)]
        if self.columns:
            parts += ["Columns", f"  {self.columns}"]
        if self.aggregates:
            parts += ["Aggregates", *(f"  {line}" for line in self.aggregates)]
        if self.note:
            parts += ["Note", f"  {self.note}"]
        return "\n".join(parts)


def convert(
    catalyst: Catalyst,
    plan: Any,
    df: DataFrame | None,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    refused: str = "",
    *,
    pushes_aggregates: bool = True,
) -> Converted:
    """Convert an analyzed plan.

    Args:
        catalyst: Access to Spark's plans.
        plan: The analyzed plan.
        df: The query as Spark runs it; None if Spark refused it.
        rows: Rows of the inputs, in proportion.
        options: Options of the operator.
        refused: Why Spark refused the query.
        pushes_aggregates: Whether aggregates are computed inside the joins.

    Returns:
        What became of the query.

    Raises:
        InvalidArgumentError: An option does not fit. Nothing has run then.
    """
    before = cache(partial(catalyst.refusal, plan))

    def unconverted(note: str, conversion: Conversion | None = None) -> Converted:
        if df is not None and not all(map(before, OUTPUT_MODES)):
            refusal = _unlinked(catalyst, plan, conversion)
            return Converted(None if refusal else df, False, note, refusal, conversion)
        refusal = refused or before(OUTPUT_MODES[0]) or ""
        return Converted(None, False, note, refusal, conversion)

    if not catalyst.is_streaming(plan):
        return unconverted("the query reads no stream")
    if operators_in(plan):
        pushed, of_aggregates = None, list[str]()
        if df is not None:
            pushed, of_aggregates = _above_operator(catalyst, plan, pushes_aggregates)
        found = unconverted(
            "the query contains an operator of lsmstate already, and Spark allows one in a query"
        )
        return pushed or replace(found, aggregates=tuple(of_aggregates))
    try:
        read = read_plan(catalyst, plan)
    except InvalidArgumentError as unread:
        return unconverted(str(unread))
    fits_several = fits_several_groups(options)
    conversion = groups_of_one_operator(read.tree) if fits_several else largest_group(read.tree)
    if not conversion.multi_joins:
        return unconverted(_reasons(conversion) or _no_joins(conversion), conversion)
    if redeclares_watermark(conversion.after):
        return unconverted(
            "a watermark is declared again above the joins, and Spark computes it from their "
            "results; declare it on the inputs only",
            conversion,
        )
    try:
        try:
            build = partial(_rebuilt, read, rows, options, pushes_aggregates)
            conversion, rebuilt, told = _with_range(conversion, build, tries_it=fits_several)
        except UnfitInputError:
            if len(conversion.multi_joins) < 2:
                raise
            # An input of another group that cannot be stored is no reason to give up the largest.
            conversion = largest_group(read.tree)
            conversion, rebuilt, told = _with_range(conversion, build, tries_it=fits_several)
    except UnfitInputError as unfit:
        return unconverted(str(unfit), conversion)
    after = cache(partial(catalyst.refusal, rebuilt))
    kept = [mode for mode in OUTPUT_MODES if df is not None and not before(mode)]
    lost = [mode for mode in kept if after(mode)]
    update_as_append = may_run_as_append(before, after, conversion.after)
    if lost and not (update_as_append and lost == ["update"]):
        return unconverted(
            f"the converted query would not run in {lost[0]} mode: {after(lost[0])}", conversion
        )
    # Spark refuses by an exception that holds the whole plan as text: the likely mode first.
    if df is None or all(map(after, [*kept, *reversed(OUTPUT_MODES)])):
        return Converted(None, False, "", refused or after(OUTPUT_MODES[0]) or "", conversion)
    if unlinked := _unlinked(catalyst, rebuilt, conversion):
        return Converted(None, False, _reasons(conversion), unlinked, conversion)
    return Converted(
        catalyst.dataframe(rebuilt),
        True,
        _reasons(conversion),
        "",
        conversion,
        update_as_append,
        tuple(told.aggregates),
        told.columns,
    )


def groups_of_one_operator(tree: Node) -> Conversion:
    """Convert the groups that one operator of a streaming query can serve: all groups that a UNION
    ALL combines, or a single one. Of several such choices, take the one with the most joins, and of
    those the first. Groups beside other inputs of a union are gathered."""
    conversion = _gathered(two_step_convert(tree, by_any_condition=True))
    together = [
        [branch.multi_join for branch in branches]
        for _, branches in unions_of_joins(conversion.after)
    ]
    alone = [[multi_join] for multi_join in conversion.multi_joins]
    return _gathered(_conversion_of(tree, conversion, [*together, *alone], any_keys))


def _gathered(conversion: Conversion) -> Conversion:
    return replace(conversion, after=with_joins_gathered(conversion.after))


def largest_group(tree: Node, group_rule: GroupRule = any_keys) -> Conversion:
    """Convert only the group with the most inputs; of several, the first."""
    conversion = two_step_convert(tree, group_rule=group_rule, by_any_condition=True)
    alone = [[multi_join] for multi_join in conversion.multi_joins]
    return _conversion_of(tree, conversion, alone, group_rule)


def _conversion_of(
    tree: Node,
    conversion: Conversion,
    choices: Sequence[Sequence[MultiJoin]],
    group_rule: GroupRule,
) -> Conversion:
    """The conversion of the choice with the most joins; ``conversion`` is that of all groups."""
    if len(conversion.multi_joins) < 2:
        return conversion
    chosen = max(choices, key=lambda groups: sum(len(group.inputs) - 1 for group in groups))
    if len(chosen) == len(conversion.multi_joins):
        return conversion
    numbers = {multi_join.group for multi_join in chosen}
    reason = f"Spark allows one such operator in a query, and {_shown(chosen)}"
    if len(chosen) == 1 and _unites_joins(conversion.after):
        reason += f"; of a UNION ALL it serves only {_UNITED}"
    # Joins in no group stay so: without the others, some could found one more.
    left = {
        join.handle: reason if verdict.group else verdict.reason
        for join, verdict in conversion.verdicts.items()
        if verdict.group not in numbers
    }
    return two_step_convert(
        tree,
        lambda join: left.get(join.handle) or inner_join_of_streams(join),
        group_rule,
        by_any_condition=True,
    )


def _shown(chosen: Sequence[MultiJoin]) -> str:
    if len(chosen) == 1:
        return f"it serves another group of {len(chosen[0].inputs)} inputs, which is no smaller"
    counts = " and ".join(str(len(group.inputs)) for group in chosen)
    return f"it serves the groups of {counts} inputs that a UNION ALL combines"


def may_run_as_append(before: Refusal, after: Refusal, converted: Node) -> bool:
    """Whether append mode gives the same rows as update mode, in which the operator cannot run.

    Before release 4.2, Spark does not run joins of streams in update mode. Results never change if
    nothing above them aggregates, and if no input depends on the mode.

    Args:
        before: Why Spark refuses an output mode for the original query.
        after: The same for the converted query.
        converted: The converted plan.
    """
    if before("append") or after("append") or not after("update"):
        return False
    if not before("update"):
        return True
    return not stateful_above(converted) and not mode_bound_below(converted)


def _unites_joins(plan: Node) -> bool:
    """Whether several multi-way joins stand below one UNION ALL, with whatever between."""
    return any(
        isinstance(node, Other)
        and node.name == "Union"
        and sum(isinstance(below, MultiJoin) for below in parents_first(node)) > 1
        for node in parents_first(plan)
    )


def _reasons(conversion: Conversion) -> str:
    """Why joins of streams were not merged."""
    return "; ".join(
        dict.fromkeys(
            verdict.reason
            for join, verdict in conversion.verdicts.items()
            if verdict.group is None and all(map(is_streaming, join.inputs))
        )
    )


def _unlinked(catalyst: Catalyst, plan: Any, conversion: Conversion | None) -> str:
    """Why Spark would fail a query with joins of streams that are left to it; empty if it would
    not."""
    has_joins = conversion is not None and _reasons(conversion)
    return (catalyst.unlinked_join(plan) or "") if has_joins else ""


def _no_joins(conversion: Conversion) -> str:
    return f"the query has no join{' of streams' if conversion.verdicts else ''}"


@dataclass
class _Told:
    """What is to be explained."""

    aggregates: list[str]
    columns: str = ""


def _with_range(
    conversion: Conversion, build: "Callable[..., tuple[Any, _Told]]", *, tries_it: bool
) -> "tuple[Conversion, Any, _Told]":
    """The conversion with comparisons inside the join, if it finds fewer rows by them, or as it
    is; and what ``build`` makes of it."""
    ranged = with_ranges(conversion) if tries_it else None
    if ranged is not None:
        with suppress(RangeNotUsedError):
            return ranged, *build(ranged, is_ranged=True)
    return conversion, *build(conversion)


def _rebuilt(
    read: ReadPlan,
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    pushes_aggregates: bool,
    conversion: Conversion,
    *,
    is_ranged: bool = False,
) -> tuple[Any, "_Told"]:
    """The converted plan, and what became of its aggregates and columns. RangeNotUsedError if
    ``is_ranged``, and the join does not find rows by its conditions."""
    catalyst = read.spark.catalyst

    def frames(writer: PlanWriter, multi_join: MultiJoin) -> list[DataFrame]:
        return [catalyst.dataframe(writer.plan(node)) for node in multi_join.inputs]

    def made(
        multi_join: MultiJoin, inputs: list[DataFrame], grouped: GroupedResults | None = None
    ) -> DataFrame:
        if is_ranged:
            check_range(multi_join, inputs, grouped)
        return joined_frames(multi_join, inputs, rows, options, grouped)

    def write_join(multi_join: MultiJoin) -> Written:
        entering = sum(len(node.columns) for node in multi_join.inputs)
        if len(multi_join.columns) < entering:
            told.columns = explained_columns(len(multi_join.columns), entering)
        joined = made(multi_join, frames(writer, multi_join))
        plan = analyzed_plan(joined)
        return plan, result_columns(catalyst, multi_join, plan)

    def write_joins(writer: PlanWriter) -> Any:
        groups = {branch.multi_join: frames(writer, branch.multi_join) for branch in branches}
        joined = joined_groups(groups, rows, options)
        return write_union(catalyst, writer, union, branches, joined)

    times = PlanWriter(read, write_join, passes_watermark=True)
    reads = times.passes_watermark if "time" in options else lambda _: False
    shows_all = len(conversion.multi_joins) > 1
    tree = pruned(conversion.after, reads=reads, shows_all=shows_all)
    instead: dict[Node, Callable[[PlanWriter], Any]] = {}
    if len(conversion.multi_joins) > 1:
        union, branches = next(unions_of_joins(tree))
        instead[union] = write_joins
    told = _Told([])

    def grouped(writer: PlanWriter, join: Node) -> SparkJoin:
        assert isinstance(join, MultiJoin)
        inputs = frames(writer, join)
        return SparkJoin(*streams_of(join, inputs), partial(made, join, inputs), inputs)

    for node, found in aggregates_of_joins(tree):
        if not pushes_aggregates:
            told.aggregates.append(explained_aggregate(node, "push_aggregates=False"))
        elif isinstance(found, str):
            told.aggregates.append(explained_aggregate(node, found))
        elif len(conversion.multi_joins) == 1:
            instead[node] = partial(_write_parts, read, found, grouped, instead, told.aggregates)
    waits = bool(stateful_above(conversion.after))
    writer = PlanWriter(read, write_join, write_nodes=instead, passes_watermark=waits)
    return writer.plan(tree), told


def _write_parts(
    read: ReadPlan,
    found: JoinAggregate,
    grouped: Callable[[PlanWriter, Node], SparkJoin],
    instead: dict[Node, Callable[[PlanWriter], Any]],
    told: list[str],
    writer: PlanWriter,
) -> Any:
    """Write an aggregate over partial ones, or as it was read. ``told``: what became of it."""
    node, catalyst = found.node, read.spark.catalyst
    try:
        join = grouped(writer, found.join)
        plan = write_aggregate(catalyst, writer, found, join, read.spark.expression)
    except NotPushedError as reason:
        told.append(explained_aggregate(node, str(reason)))
        del instead[node]
        return writer.plan(node)
    told.append(explained_aggregate(node, None))
    return plan


def _above_operator(
    catalyst: Catalyst, plan: Any, pushes_aggregates: bool
) -> tuple[Converted | None, list[str]]:
    """The query over the result of ``multiway_join``, which aggregates inside it or leaves out
    columns that nothing reads, or None if it cannot; and what became of its aggregates."""

    def grouped(_writer: PlanWriter, node: Node) -> SparkJoin:
        join = known[node]
        columns = dict(zip(node.columns, join.columns, strict=True))
        return SparkJoin(join.streams, columns, join.grouped, fields=join.columns)

    def narrowed(node: Node, join: KnownJoin, writer: PlanWriter) -> Any:
        wanted = [each for each in node.columns if each in made[node]] or [node.columns[0]]
        columns = dict(zip(node.columns, join.columns, strict=True))
        frame = join.narrowed([columns[each] for each in wanted])
        if frame is None:
            del instead[node]
            return writer.plan(node)
        shown.append(explained_columns(len(wanted), len(node.columns)))
        narrow = analyzed_plan(frame)
        own = dict(zip(wanted, catalyst.output_attributes(narrow), strict=True))
        return catalyst.project(writer.own(own), narrow)

    try:
        read = read_plan(catalyst, plan)
    except InvalidArgumentError:
        return None, []
    known = _known_joins(read)
    if not known:
        return None, []
    made = dict.fromkeys(known, frozenset[Column]())
    tree = pruned(read.tree, made=made)
    told: list[str] = []
    shown: list[str] = []
    instead: dict[Node, Callable[[PlanWriter], Any]] = {}
    for node, found in aggregates_of_joins(tree, known.__contains__):
        if not pushes_aggregates:
            told.append(explained_aggregate(node, "push_aggregates=False"))
        elif isinstance(found, str):
            told.append(explained_aggregate(node, found))
        else:
            instead[node] = partial(_write_parts, read, found, grouped, instead, told)
    for below, join in known.items():
        if len(known) == 1 and len(made[below]) < len(below.columns):
            instead[below] = partial(narrowed, below, join)
    rebuilt = PlanWriter(read, _no_join, write_nodes=instead).plan(tree) if instead else plan
    is_pushed = any(node in instead for node, _ in aggregates_of_joins(tree, known.__contains__))
    if not is_pushed and not shown:
        return None, told
    columns = "".join(shown)
    df = catalyst.dataframe(rebuilt)
    return Converted(df, True, "", "", None, aggregates=tuple(told), columns=columns), told


def _known_joins(read: ReadPlan) -> dict[Node, KnownJoin]:
    """The results of ``multiway_join`` in a plan."""
    found: dict[Node, KnownJoin] = {}
    for node in parents_first(read.tree):
        columns, handle = node.columns, getattr(node, "handle", None)
        if columns and isinstance(handle, NodeHandle):
            ids = columns[0].number, columns[-1].number, len(columns)
            join = known_join(ids, partial(read.spark.node, handle))
            if join is not None:
                found[node] = join
    return found


def _no_join(_node: MultiJoin) -> Written:
    raise AssertionError("joins are merged in a query without an operator only")
