"""A tree of joins as the types of its columns have it: what is an interval between time stamps, and
what another condition."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import Tree
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.specs.event_time import is_between_times


def settled(tree: Tree, streams: Mapping[str, pa.Schema]) -> Tree:
    """The tree with its conditions checked, ``streams`` being as they are stored. Text alone does
    not say that ``a.x < b.y`` compares numbers: such bounds become conditions. InvalidArgumentError
    names what does not fit. Done twice it changes nothing."""
    if isinstance(tree, str):
        return tree
    timed = tuple(b for b in tree.bounds if _is_timed(streams, b))
    others = tuple(_condition(b) for b in tree.bounds if b not in timed)
    conditions = tree.conditions + others
    for condition in conditions:
        condition.check(streams)
    left, right = (settled(side, streams) for side in (tree.left, tree.right))
    return replace(tree, left=left, right=right, bounds=timed, conditions=conditions)


def _is_timed(streams: Mapping[str, pa.Schema], bound: Bound) -> bool:
    """Whether it is an interval, be it of a type that is refused; of columns that are stored."""
    is_stored = all(c.name in streams[c.stream].names for c in (bound.later, bound.earlier))
    return is_stored and (bound.most_us != 0 or is_between_times(streams, bound))


def _condition(bound: Bound) -> PairCondition:
    return PairCondition.compared(bound.later, "<" if bound.is_strict else "<=", bound.earlier)
