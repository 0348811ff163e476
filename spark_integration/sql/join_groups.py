"""A multi-way join of a plan, built as a ``multiway_join`` over DataFrames."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Final

from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.options import SKEW, STATE
from lsmstate.joins.plan.conditions import Column
from lsmstate.joins.plan.join_tree import MultiJoin, Node, Source, parents_first
from lsmstate.joins.plan.known_condition import sql_text
from lsmstate.joins.plan.signature import leaf_name, signature
from lsmstate.joins.specs.one_key import output_names
from lsmstate.spark_integration.catalyst.catalyst import Catalyst
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.joins.aggregated import GroupedResults
from lsmstate.spark_integration.joins.multiway_join import joined
from lsmstate.spark_integration.joins.several import WantedJoin, join_together
from lsmstate.spark_integration.joins.theta import any_condition
from lsmstate.spark_integration.plan.inputs import UnfitInputError
from lsmstate.spark_integration.plan.options import nearest

#: Under which the checkpoint keeps the join it was started with.
SIGNATURE: Final = "multi-way join"


def fits_several_groups(options: Mapping[str, Any]) -> bool:
    """Whether options that are set leave several groups of joins in one operator possible."""
    return set(options) <= {"state"}


def joined_frames(
    multi_join: MultiJoin,
    frames: Sequence[DataFrame],
    rows: Mapping[str, int],
    options: Mapping[str, Any],
    grouped: GroupedResults | None = None,
) -> DataFrame:
    """Join the frames, which hold the columns of the join's inputs in their order.

    Args:
        multi_join: The join.
        frames: One DataFrame per input.
        rows: Rows by input, in proportion; they win over the sizes of the sources.
        options: Options of ``multiway_join`` that are set.
        grouped: What the results are aggregated to; None: they are not.

    Returns:
        The joined DataFrame, with the columns of the join in order, or those of groups.

    Raises:
        InvalidArgumentError: The operator refuses the inputs, or ``rows`` names an unknown input.
        UngroupedError: The results cannot be aggregated inside the join.
    """
    (names,) = input_names([multi_join])
    _check_rows(rows, names)
    join = _wanted(multi_join, names, frames, rows)
    needs_shares = any(len(key.members) < len(names) for key in multi_join.keys)
    sizes = join.rows if needs_shares or not multi_join.is_linked else None
    skew = replace(options.get("skew", SKEW), rows=sizes)
    settings = {**options, "skew": skew}
    wanted = None
    if grouped is None and multi_join.shown is not None:
        _, columns = streams_of(multi_join, frames)
        wanted = [columns[each] for each in multi_join.columns]
    found = joined(
        join.streams, join.on, pins=join.pins, grouped=grouped, wanted=wanted, **settings
    )
    return found.frame if wanted is None else found.selected(join.streams, wanted)


class RangeNotUsedError(Exception):
    """A join finds rows by its keys alone, whatever conditions it has beside them."""


def check_range(
    multi_join: MultiJoin, frames: Sequence[DataFrame], grouped: GroupedResults | None
) -> None:
    """RangeNotUsedError unless a join of two inputs by keys, with the arguments of
    ``joined_frames``, finds fewer rows by its conditions."""
    (names,) = input_names([multi_join])
    join = _wanted(multi_join, names, frames, {})
    is_aggregated = grouped is not None
    if not any_condition(
        *(join.streams, join.on, "inner", "append", None, SKEW, {}), is_aggregated=is_aggregated
    ):
        raise RangeNotUsedError


def joined_groups(
    groups: Mapping[MultiJoin, Sequence[DataFrame]],
    rows: Mapping[str, int],
    options: Mapping[str, Any],
) -> DataFrame:
    """Join several groups in one operator, as ``join_together`` does. Arguments and errors are
    those of ``joined_frames``, with the frames of each group."""
    if not all(join.is_linked and not join.conditions for join in groups):
        raise UnfitInputError(
            "one operator serves several groups of joins only if equalities link their inputs"
        )
    names = input_names(groups)
    _check_rows(rows, [name for own in names for name in own])
    joins = [
        _wanted(multi_join, own, frames, rows)
        for own, (multi_join, frames) in zip(names, groups.items(), strict=True)
    ]
    return join_together(joins, options.get("state", STATE))


def input_names(groups: Iterable[MultiJoin]) -> list[list[str]]:
    """A name for each input of each group: its alias or source, numbered if it occurs again."""
    joins = list(groups)
    distinct = _distinct(leaf_name(node) for join in joins for node in join.inputs)
    return [list(islice(distinct, len(join.inputs))) for join in joins]


def streams_of(
    multi_join: MultiJoin, frames: Sequence[DataFrame]
) -> tuple[dict[str, DataFrame], dict[Column, StreamColumn]]:
    """The streams that ``joined_frames`` joins, by name, and by column of the plan that of one of
    them."""
    (names,) = input_names([multi_join])
    streams = _wanted(multi_join, names, frames, {}).streams
    columns = {
        column: StreamColumn(name, shown)
        for (name, frame), node in zip(streams.items(), multi_join.inputs, strict=True)
        for column, shown in zip(node.columns, frame.columns, strict=True)
    }
    return dict(streams), columns


def _wanted(
    multi_join: MultiJoin,
    names: Sequence[str],
    frames: Sequence[DataFrame],
    rows: Mapping[str, int],
) -> WantedJoin:
    columns = _names_of_columns(multi_join, names)
    streams = {
        name: frame if frame.columns == own else frame.toDF(*own)
        for name, frame, own in zip(names, frames, columns, strict=True)
    }
    conditions = [
        " = ".join(f"{quoted(names[at])}.{quoted(columns[at][place])}" for at, place in pair)
        for members in _key_places(multi_join)
        for pair in pairwise(members)
    ]
    called = {
        column: f"{quoted(name)}.{quoted(shown)}"
        for name, own, node in zip(names, columns, multi_join.inputs, strict=True)
        for column, shown in zip(node.columns, own, strict=True)
    }
    conditions += [sql_text(each, called) for each in multi_join.conditions]
    pins = {SIGNATURE: signature(multi_join)}
    return WantedJoin(
        streams, " AND ".join(conditions) or "TRUE", _sizes(multi_join, names, rows), pins
    )


def column_names(node: Node) -> list[str]:
    """A name for each column: its own, numbered if it occurs again."""
    return list(_distinct(column.name for column in node.columns))


def _names_of_columns(multi_join: MultiJoin, names: Sequence[str]) -> list[list[str]]:
    """The names of ``column_names``, numbered if two would be equal in the result. Beside ``o.id``,
    both ``c.id`` and ``o.c_id`` would be called ``c_id``."""
    columns = [column_names(node) for node in multi_join.inputs]
    try:
        output_names(dict(zip(names, columns, strict=True)))
    except InvalidArgumentError:
        distinct = _distinct(column for own in columns for column in own)
        return [list(islice(distinct, len(own))) for own in columns]
    return columns


def result_columns(catalyst: Catalyst, multi_join: MultiJoin, plan: Any) -> dict[Column, Any]:
    """The attribute of each of the join's columns in the plan of its result."""
    return dict(zip(multi_join.columns, catalyst.output_attributes(plan), strict=True))


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, numbered where one occurs again. Case does not count, as in Spark."""
    taken: set[str] = set()
    for name in names:
        found, number = name, 1
        while found.lower() in taken:
            number += 1
            found = f"{name}_{number}"
        taken.add(found.lower())
        yield found


def _key_places(multi_join: MultiJoin) -> list[list[tuple[int, int]]]:
    """Per key class (input, position of the column) of its members, which are columns by now."""
    columns = [[*node.columns] for node in multi_join.inputs]
    return [
        [(at, columns[at].index(value)) for at, value in key.members if isinstance(value, Column)]
        for key in multi_join.keys
    ]


def _check_rows(rows: Mapping[str, int], names: Sequence[str]) -> None:
    for name in rows:
        if name not in names:
            raise InvalidArgumentError(
                f"rows[{name!r}]: there is no such input; did you mean "
                f"{nearest(name, tuple(names))!r}? Inputs: {', '.join(names)}"
            )


def _sizes(multi_join: MultiJoin, names: Sequence[str], rows: Mapping[str, int]) -> dict[str, int]:
    """Rows per input, in proportion: as given, else from the sizes of the sources."""
    found = {name: rows[name] for name in names if name in rows}
    for name, node in zip(names, multi_join.inputs, strict=True):
        stored = [s.rows for s in parents_first(node) if isinstance(s, Source) and s.rows]
        if name not in found and stored:
            found[name] = max(stored)
    return found
