"""Where rows go that must meet all that has a say in them: outer, semi and anti joins."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lsmstate.errors import InvalidArgumentError
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
    """The plan with a distribution by which each row of a root is in one bucket, with all that has
    a say in its results: by the hash of the whole key where every join compares that, otherwise by
    shares of some keys, or in the plan's only bucket. InvalidArgumentError if there is none."""
    plan = replace(plan, routes_null_keys=frozenset(part.root for part in parts))
    everything = tuple(range(len(graph.classes)))
    steps = [step for part in parts for step in part.all_steps]
    found = meeting_classes(parts, graph)
    if found == everything and all(step.classes == everything for step in steps):
        return plan
    if not found and plan.buckets != 1:
        roots = " and ".join(repr(part.root) for part in parts)
        raise InvalidArgumentError(
            f"the joins share no key by which each row of {roots} and all its partners lie in "
            "one bucket; give buckets=1 (one task does all the work), compare every stream by a "
            f"key of {roots}, or run the joins by other keys in a query of their own"
        )
    plan = replace(plan, matches_by_part_of_keys=True)
    return with_shares(plan, graph, rows, shares, found)
