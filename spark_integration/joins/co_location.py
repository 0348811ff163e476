"""Co-location: where rows go if an outer, semi or anti join must see all their partners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.rooted_steps import RootedJoins, meeting_classes
from lsmstate.spark_integration.joins.shares import with_shares
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan


def meeting(
    plan: StatefulPlan,
    graph: GraphSpec,
    parts: Sequence[RootedJoins],
    rows: Mapping[str, int],
    shares: Mapping[str, int] | None,
) -> StatefulPlan:
    """Set the routing by which each row of a root, the preserved side, meets all its partners.

    If every join compares the whole key, rows go by its hash. Otherwise they go by shares of some
    keys, or to the only bucket.

    Returns:
        The plan with that routing.

    Raises:
        InvalidArgumentError: There is no such routing.
    """
    roots = frozenset(part.root for part in parts)
    everything = tuple(range(len(graph.classes)))
    steps = [step for part in parts for step in part.all_steps]
    found = meeting_classes(parts, graph)
    if found == everything and all(step.classes == everything for step in steps):
        return replace(plan, routing=HashRouting(routes_null_keys=roots))
    if not found and plan.buckets != 1:
        listed = " and ".join(repr(part.root) for part in parts)
        raise InvalidArgumentError(
            f"the joins share no key by which each row of {listed} and all its partners lie in "
            "one bucket; give buckets=1 (one task does all the work), compare every stream by a "
            f"key of {listed}, or run the joins by other keys in a query of their own"
        )
    return with_shares(plan, graph, rows, shares, found, roots)
