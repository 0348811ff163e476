"""Operators above a join: those that would lose rows without an error are refused.

Spark knows no watermark of the columns that leave our operator. An operator above that waits for a
watermark would wait for ever, or take every row for late. The remedy is a result time
(``joins/event_time.py``), whose watermark is correct.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import items, kind_of
from lsmstate.spark_integration.plan.stateful_plan import Wanted

_OUTER = ("LeftOuter", "RightOuter", "FullOuter")
_REMEDY = (
    "give {operator} a result time and use that column (time=Time(result_time='at') adds the "
    "latest event time of a result's rows, with a correct watermark)"
)


def check_above(path: Sequence[Any], wanted: Wanted) -> None:
    """InvalidArgumentError if a node above our operator would lose rows, or wait for ever, without
    an error. ``path``: these nodes in Spark's analyzed plan, the nearest first."""
    is_known = False
    remedy = _REMEDY.format(operator=wanted.operator)
    for node in path:
        kind = kind_of(node)
        if kind == "EventTimeWatermark":
            column = node.eventTime().name()
            if is_known:
                raise InvalidArgumentError(
                    f"withWatermark({column!r}) stands above {wanted.operator}, whose result time "
                    f"{wanted.result_time!r} has a watermark already; leave it out"
                )
            if wanted.watches_time and column != wanted.result_time:
                raise InvalidArgumentError(
                    f"withWatermark({column!r}) stands above {wanted.operator}, which forgets rows "
                    "by the query's watermark: neither watermark would move while the join finds "
                    f"nothing; {remedy}"
                )
            is_known = True
        elif is_known:
            continue
        elif kind == "Union" and not wanted.watches_time and _has_watermark(node):
            # Spark takes the watermark of a union from those branches that have one. Above a join
            # that forgets, whose results may be older than that, a result time is needed.
            is_known = True
        elif kind == "Aggregate" and _waits(node):
            raise InvalidArgumentError(
                f"the aggregation by {_grouping(node)} stands above {wanted.operator}, whose "
                f"columns have no watermark: it would never emit a row; {remedy}"
            )
        elif kind.startswith("TransformWithState") and _is_in_event_time(node):
            raise InvalidArgumentError(
                f"transformWithState in event time stands above {wanted.operator}, whose columns "
                "have no watermark: results of older rows would arrive after its timers; use "
                f"processing time, or {remedy}"
            )
        elif kind == "Join" and _is_outer_of_streams(node):
            raise InvalidArgumentError(
                f"the {node.joinType().sql().lower()} join stands above {wanted.operator}, whose "
                "columns have no watermark: rows without a partner would never be emitted; "
                f"{remedy}"
            )


def _has_watermark(node: Any) -> bool:
    """Whether a watermark is declared below, without the inputs of an operator of ours."""
    stack = [node]
    while stack:
        node = stack.pop()
        if kind_of(node) == "EventTimeWatermark":
            return True
        if "InPandasWithState" not in kind_of(node):
            stack += items(node.children())
    return False


def _waits(aggregate: Any) -> bool:
    """Whether it emits its rows when a watermark has passed them."""
    return any("spark.watermarkDelayMs" in a.metadata().json() for a in _attributes(aggregate))


def _grouping(aggregate: Any) -> str:
    return ", ".join(f"{attribute.name()!r}" for attribute in _attributes(aggregate))


def _attributes(aggregate: Any) -> Iterator[Any]:
    for expression in items(aggregate.groupingExpressions()):
        yield from items(expression.references().toSeq())


def _is_in_event_time(node: Any) -> bool:
    return "EventTime" in str(node.timeMode().toString())


def _is_outer_of_streams(join: Any) -> bool:
    kind = join.joinType().toString()
    return kind in _OUTER and join.left().isStreaming() and join.right().isStreaming()
