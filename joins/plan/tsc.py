"""Two-Step Convert: the binary inner equi-joins of a plan become multi-way joins.

UMJoin paper, section 3.2. Step 1, ``create_multi_join_groups`` (Algorithm 2), finds the groups.
Step 2, ``get_multi_join_node`` (Algorithm 3), replaces each group by a ``MultiJoin``. The
algorithms as printed lose joins. This implementation differs in these points:

- A node that joins a group is marked as a member, and so is the root. Algorithm 2 marks only the
  root, so nothing two levels below it can follow. Algorithm 3 collects the inputs of members; the
  root is none, so its own inputs are lost.
- Nodes are visited after all their outputs. In breadth-first order, as printed, a shared node comes
  before an output that lies deeper, whose group is then unknown.
- Inputs stand in the order of the user's joins, because a restart from a checkpoint depends on it.
  Algorithm 3 puts those nearest the root first.
- A shared join whose outputs are all in one group is inserted once per output, with renamed
  columns. Algorithm 3 inserts its inputs once, which gives another result.
- Only inner joins of streams are members. Algorithm 2 takes a join of any kind. Any number of
  filters and projections may stand between joins (the paper's HashNode: one; section 4.3 adds
  projections in words).
- Conditions, which the algorithms do not mention, are collected over the group and distributed
  again (``flatten``). A group whose inputs are not linked by equalities is split at the missing
  link, unless the operator joins by any condition.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lsmstate.joins.plan.conditions import conjuncts, is_volatile
from lsmstate.joins.plan.flatten import FlatGroup, flatten
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Project,
    depth,
    filtered,
    has_streaming_aggregate,
    is_streaming,
    outputs_of,
    parents_first,
    with_inputs,
)
from lsmstate.joins.plan.push_down import push_filters

#: The reason why a join can be no member of a group, or None if it can.
MembershipRule = Callable[[Join], str | None]
#: The reason why the operator cannot run a group as one multi-way join, or None if it can.
GroupRule = Callable[[MultiJoin], str | None]

#: Deeper plans are left as they are: the conversion recurses, a few Python frames a level.
MAX_DEPTH = 200


@dataclass(eq=False)
class MultiJoinGroup:
    """Joins that become one, with the nodes between them. ``root`` is the first member."""

    root: Join
    members: list[Node]


@dataclass(frozen=True)
class Verdict:
    """The result for one join: the number of its group, from 1, or the reason why it has none."""

    group: int | None
    reason: str


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion. ``after`` is ``before`` itself if nothing was converted."""

    before: Node
    after: Node
    multi_joins: tuple[MultiJoin, ...]
    verdicts: Mapping[Join, Verdict]
    """For every join of ``before``, in its order."""


def inner_join_of_streams(join: Join) -> str | None:
    """The membership rule of our operator: inner, with an append-only stream on each side."""
    if join.kind != "inner":
        return f"a {join.kind} join; only inner joins are merged"
    if any(is_volatile(part) for part in conjuncts(join.condition)):
        return "the condition of the join is not deterministic"
    for side, node in zip(("left", "right"), join.inputs, strict=True):
        if not is_streaming(node):
            return f"the {side} side of the join is not a stream"
        if has_streaming_aggregate(node):
            return (
                f"the {side} side of the join has a streaming aggregate, whose results change later"
            )
    return None


def any_keys(multi_join: MultiJoin) -> str | None:
    """The group rule that accepts every group."""
    return None


def one_common_key(multi_join: MultiJoin) -> str | None:
    """The group rule of an operator that hashes by one key: a key class with every input."""
    if multi_join.common_keys:
        return None
    return f"the {len(multi_join.inputs)} inputs of the merged join share no common key"


def two_step_convert(
    plan: Node,
    membership: MembershipRule = inner_join_of_streams,
    group_rule: GroupRule = any_keys,
    *,
    by_any_condition: bool = False,
) -> Conversion:
    """Convert a plan (Algorithm 1), after filters have moved down to their joins.

    A group that cannot run loses a join and is looked for again, so that joins below and beside it
    still find their groups.

    Args:
        plan: The plan.
        membership: Says why a join cannot be a member of a group.
        group_rule: Says why a group cannot run as one multi-way join.
        by_any_condition: Whether the operator joins inputs that no equality links.

    Returns:
        The converted plan, and what became of each join.

    Cost:
        Nodes times (1 + joins so lost).
    """
    if depth(plan) > MAX_DEPTH:
        verdict = Verdict(None, f"the plan has {depth(plan)} levels, more than {MAX_DEPTH}")
        return Conversion(plan, plan, (), dict.fromkeys(joins_of(plan), verdict))
    prepared, origins = push_filters(plan)
    refused: dict[Join, str] = {}

    def rule(join: Join) -> str | None:
        return refused.get(join) or membership(join)

    while True:
        groups = create_multi_join_groups(prepared, rule)
        found = [_refusal(group, group_rule, by_any_condition) for group in _distinct(groups)]
        new = dict(refusal for refusal in found if refusal is not None)
        if not new:
            break
        refused |= new
    after, multi_joins = get_multi_join_node(prepared, groups)
    verdicts: dict[Join, Verdict] = {}
    numbers = {group: number for number, group in enumerate(_distinct(groups), 1)}
    for join in origins:
        number = numbers[groups[join]] if join in groups else None
        reason = f"merged into group {number}" if number else rule(join)
        assert reason is not None, "a join without a reason founds a group"
        verdicts[origins[join]] = Verdict(number, reason)
    ordered = {join: verdicts[join] for join in joins_of(plan)}
    return Conversion(plan, after if multi_joins else plan, multi_joins, ordered)


def joins_of(plan: Node) -> list[Join]:
    return [node for node in parents_first(plan) if isinstance(node, Join)]


def create_multi_join_groups(plan: Node, rule: MembershipRule) -> dict[Node, MultiJoinGroup]:
    """Step 1: the group of every node that is in one, groups in the order of their roots."""
    outputs = outputs_of(plan)
    groups: dict[Node, MultiJoinGroup] = {}
    for node in parents_first(plan):
        if not _can_be_member(node, rule):
            continue
        group = _group_of_all(outputs[node], groups)
        if group is not None:
            group.members.append(node)
        elif isinstance(node, Join):
            group = MultiJoinGroup(node, [node])
        else:
            continue
        groups[node] = group
    return groups


def get_multi_join_node(
    plan: Node, groups: Mapping[Node, MultiJoinGroup]
) -> tuple[Node, tuple[MultiJoin, ...]]:
    """Step 2: the plan with a ``MultiJoin`` in place of each group, and those, by group."""
    numbers = {group: number for number, group in enumerate(_distinct(groups), 1)}
    multi_joins: dict[int, MultiJoin] = {}
    visited: dict[Node, Node] = {}

    def convert(node: Node) -> Node:
        if node not in visited:
            group = groups.get(node)
            if group is not None and group.root is node:
                flat = flatten(group.root, frozenset(group.members), convert)
                multi_join = flat.multi_join(numbers[group])
                multi_joins[multi_join.group] = multi_join
                visited[node] = _put_in_place(flat, multi_join)
            else:
                visited[node] = with_inputs(node, [convert(child) for child in node.inputs])
        return visited[node]

    after = convert(plan)
    return after, tuple(multi_joins[number] for number in sorted(multi_joins))


def _can_be_member(node: Node, rule: MembershipRule) -> bool:
    """Whether it is a join that the rule accepts, or only renames and filters the rows of one."""
    while True:
        match node:
            case Join():
                return rule(node) is None
            case Filter() if not is_volatile(node.condition):
                node = node.input
            case Project() if not any(is_volatile(value) for _, value in node.values):
                node = node.input
            case Alias():
                node = node.input
            case _:
                return False


def _group_of_all(
    outputs: list[Node], groups: Mapping[Node, MultiJoinGroup]
) -> MultiJoinGroup | None:
    """canBeInSameGroupWithOutputs of the paper: the group of all outputs, if it is one."""
    found = {groups.get(output) for output in outputs}
    return found.pop() if len(found) == 1 else None


def _distinct(groups: Mapping[Node, MultiJoinGroup]) -> list[MultiJoinGroup]:
    return list(dict.fromkeys(groups.values()))


def _refusal(
    group: MultiJoinGroup, group_rule: GroupRule, by_any_condition: bool
) -> tuple[Join, str] | None:
    """The join that must leave the group so that the rest can run, and why."""
    flat = flatten(group.root, frozenset(group.members))
    unlinked = flat.unlinked_join()
    if unlinked is not None and not by_any_condition:
        return unlinked, "no equality links the two sides of the join"
    reason = group_rule(flat.multi_join(0))
    return None if reason is None else (group.root, reason)


def _put_in_place(flat: FlatGroup, multi_join: MultiJoin) -> Node:
    """The multi-way join, filtered by the other conditions, with the columns of the root."""
    node = filtered(multi_join, flat.above)
    values = tuple(flat.values.items())
    same = [value for _, value in values] == list(node.columns)
    return node if same and node.columns == tuple(flat.values) else Project(node, values)
