"""Shares of a join by several keys: chosen when it is built, pinned by its first start."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.shares import JoinGraph, Shares, choose
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan, is_classic
from lsmstate.spark_integration.checkpoint.location import below
from lsmstate.spark_integration.checkpoint.pinned_settings import SKEW, STATE_NAME
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.skew.checks import check_local
from lsmstate.spark_integration.skew.key_watch import SPREAD
from lsmstate.spark_integration.skew.route_tables import newest_table
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from lsmstate.spark_integration.stateful_operator.routers import SHARES
from lsmstate.state_location import local_path


def with_shares(
    plan: StatefulPlan,
    spec: GraphSpec,
    rows: Mapping[str, int],
    forced: Mapping[str, int] | None,
    splittable: Collection[int] | None = None,
) -> StatefulPlan:
    """The plan with its join graph, the shares for its buckets, and their explanation.

    ``rows``: rows per stream, in proportion; streams that are not named count as the largest.
    ``splittable``: the only classes whose values rows may be spread by, by default all.
    InvalidArgumentError names what does not fit.
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
        graph=graph,
        adopted={SHARES: shares.to_json()},
        explanation=_explained(spec, shares),
    )


def explain_join(joined: DataFrame, checkpoint: str | None = None) -> str:
    """How the multiway_join in a streaming DataFrame will work: keys, indexes, shares.

    A query whose checkpoint has other shares keeps those. With the ``checkpoint`` of a query that
    runs or ran with ``skew="spread"``: also the keys that are spread by now, and their buckets (of
    those it has, numbered from 0). InvalidArgumentError if the DataFrame holds no join of ours, or
    comes from Spark Connect, where plans cannot be read.
    """
    if not is_classic(joined.sparkSession):
        raise InvalidArgumentError("explain_join needs a plan, which Spark Connect does not show")
    found = operators_in(analyzed_plan(joined))
    if not found or found[0].operator != "multiway_join":
        raise InvalidArgumentError("the DataFrame holds no multiway_join")
    if checkpoint is None or found[0].settings.get(SKEW) != SPREAD:
        return found[0].explanation
    root = found[0].state_dir or below(checkpoint, STATE_NAME)
    check_local(root)
    spread = newest_table(local_path(root) or root).explain()
    return f"{found[0].explanation}\n{spread or 'no key is spread so far'}"


def _explained(spec: GraphSpec, shares: Shares) -> str:
    keys = "; ".join(map(str, spec.classes))
    indexes = ", ".join(index.name for index in spec.indexes)
    return f"keys: {keys}\nindexes: {indexes}\n{shares.explain()}"
