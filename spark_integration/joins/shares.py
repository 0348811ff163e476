"""Hypercube shares of a join by several keys: how many buckets each key is split into.

The shares are chosen when the query is built. Its first start pins them, and later starts adopt the
pinned ones (Afrati and Ullman, "Optimizing Joins in a Map-Reduce Environment", EDBT 2010;
``lsmstate.joins.routing.shares``).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.picture import Explanation, picture_of
from lsmstate.joins.routing.documents.learned_routing import LearnedRouting
from lsmstate.joins.routing.shares import JoinGraph, Shares, choose
from lsmstate.joins.routing.shares_router import SharesRouting
from lsmstate.joins.routing.skew.spread_router import SpreadRouting
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan, is_classic
from lsmstate.spark_integration.checkpoint.location import below
from lsmstate.spark_integration.checkpoint.pinned_settings import SKEW, STATE_NAME
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan, Wanted
from lsmstate.spark_integration.plan.storage import kept
from lsmstate.spark_integration.skew.key_watch import SPREAD
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from lsmstate.spark_integration.tables.versioned_tables import newest_table

#: Operators that are joins.
_EXPLAINED: Final = (
    *("multiway_join", "natural_join", "similarity_join", "asof_join", "deduplicate"),
)


def with_shares(
    plan: StatefulPlan,
    spec: GraphSpec,
    rows: Mapping[str, int],
    forced: Mapping[str, int] | None,
    splittable: Collection[int] | None = None,
    routes_null_keys: frozenset[str] = frozenset(),
) -> StatefulPlan:
    """Add the routing by shares and its explanation to a plan.

    Args:
        plan: The plan of the operator.
        spec: The join.
        rows: Rows per stream, in proportion; other streams count as the largest.
        forced: Shares that the user gave; None: choose them.
        splittable: The only key classes that may be split, where rows may match by part of their
            keys; None: all, and rows match by all of their keys.
        routes_null_keys: Streams whose rows go to a bucket also if a key holds a null.

    Returns:
        The new plan.

    Raises:
        InvalidArgumentError: A stream, key class or share does not fit.
    """
    for name in rows:
        spec.check_stream(name)
    largest = max(rows.values(), default=1)
    graph = JoinGraph(
        rows={name: rows.get(name, largest) for name in spec.streams},
        classes={
            name: tuple(c.columns) for name, c in zip(spec.class_names, spec.classes, strict=True)
        },
    )
    names = None if splittable is None else [spec.class_names[n] for n in splittable]
    shares = choose(graph, plan.buckets or plan.default_buckets, forced, names)
    settings = {**plan.settings, "forced shares": dict(forced) if forced is not None else None}
    return replace(
        plan,
        settings=settings,
        routing=SharesRouting(
            graph,
            shares,
            by_part_of_keys=splittable is not None,
            routes_null_keys=routes_null_keys,
        ),
        explanation=_explained(spec, shares),
    )


def explain_join(joined: DataFrame, checkpoint: str | None = None) -> Explanation:
    """Describe how a join works: keys, indexes, shares, how long rows are kept; of a natural_join
    how documents are routed, and what that costs the sample.

    Notebooks show the text with a picture of the plan. ``.mermaid`` and ``.svg`` give the picture.

    Shares of a new query are shown as chosen now. A query that has started keeps its pinned shares.

    Args:
        joined: A DataFrame that contains the result of ``multiway_join``, or of another operator
            but ``stateful_batches``.
        checkpoint: Checkpoint location of a query that runs or ran. With ``hot_keys="spread"``, the
            hot keys that are spread by now are listed with their buckets, from 0. Of a
            natural_join, the routing by now is shown, what it was estimated to cost, and what was
            seen.

    Returns:
        The description: a ``str`` of some lines, with its picture.

    Raises:
        InvalidArgumentError: It is no DataFrame, contains no ``multiway_join``, or is one of Spark
            Connect, where plans cannot be read.

    Example:
        ```python
        print(explain_join(multiway_join({"c": c, "o": o}, ON, skew=Skew(rows={"o": 9})))
        ```
    """
    if not hasattr(joined, "sparkSession"):
        raise InvalidArgumentError(
            f"explain_join describes a DataFrame, and this is a {type(joined).__name__}; a join in "
            "plain Python shows itself in notebooks, and by rich.print"
        )
    if not is_classic(joined.sparkSession):
        raise InvalidArgumentError(
            "explain_join reads the query plan, which Spark Connect does not expose; call it in a "
            "classic Spark session"
        )
    found = operators_in(analyzed_plan(joined))
    if not found or found[0].operator not in _EXPLAINED:
        raise InvalidArgumentError(
            "the DataFrame contains no multiway_join; give the DataFrame that multiway_join, "
            f"{', '.join(_EXPLAINED[1:-1])} or {_EXPLAINED[-1]} returned, or one that was made of "
            "it"
        )
    is_spread = found[0].settings.get(SKEW) == SPREAD
    if checkpoint is None or not (is_spread or found[0].operator == "natural_join"):
        return _pictured(found[0], found[0].explanation)
    root = found[0].state_dir or below(checkpoint, STATE_NAME)
    place = kept(found[0].storage_key).place(root)
    if not is_spread:
        learned = newest_table(place, LearnedRouting()).explain()
        return _pictured(found[0], learned or found[0].explanation)
    spread = newest_table(place, SpreadRouting()).explain()
    text = f"{found[0].explanation}\n{spread or 'no key is spread yet'}"
    return _pictured(found[0], text)


def _pictured(wanted: Wanted, text: str) -> Explanation:
    streams = wanted.settings.get("streams") or wanted.settings.get("inputs") or ()
    buckets = wanted.buckets or wanted.default_buckets
    return Explanation.of(text, picture_of(wanted.operator, streams, text, buckets))


def _explained(spec: GraphSpec, shares: Shares) -> str:
    keys = "; ".join(map(str, spec.classes))
    indexes = ", ".join(index.name for index in spec.indexes)
    return f"keys: {keys}\nindexes: {indexes}\n{shares.explain()}"
