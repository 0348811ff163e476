"""Places in Catalyst's plan of what was read, and Spark's own objects for them."""

from dataclasses import dataclass
from typing import Any

from lsmstate.joins.plan.conditions import Expression
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, Slot


@dataclass(frozen=True)
class NodeHandle:
    """A node of the plan, by the child to take at each step from the root."""

    path: tuple[int, ...]


@dataclass(frozen=True)
class ExpressionHandle:
    """An expression of a node: its condition, or one of its values; then child by child."""

    node: NodeHandle
    slot: Slot
    """Position in a projection, ``filter`` or ``join``; of an aggregate ``grouping`` or ``result``
    and its position."""
    path: tuple[int, ...] = ()
    arguments: tuple[Expression, ...] = ()
    """What it was read with: other arguments make it another expression."""


class SparkPlan:
    """Spark's own nodes and expressions of one plan. Each is fetched once, by two calls."""

    def __init__(self, catalyst: Catalyst, root: Any) -> None:
        self.catalyst = catalyst
        self.root = root
        self._nodes: dict[tuple[int, ...], Any] = {(): root}
        self._expressions: dict[tuple[NodeHandle, Slot, tuple[int, ...]], Any] = {}

    def node(self, handle: NodeHandle) -> Any:
        return self._node(handle.path)

    def expression(self, handle: ExpressionHandle) -> Any:
        return self._expression(handle.node, handle.slot, handle.path)

    def _node(self, path: tuple[int, ...]) -> Any:
        if path not in self._nodes:
            self._nodes[path] = self.catalyst.child(self._node(path[:-1]), path[-1])
        return self._nodes[path]

    def _expression(self, handle: NodeHandle, slot: Slot, path: tuple[int, ...]) -> Any:
        key = (handle, slot, path)
        if key not in self._expressions:
            if path:
                above = self._expression(handle, slot, path[:-1])
                self._expressions[key] = self.catalyst.child(above, path[-1])
            else:
                self._expressions[key] = self.catalyst.slot(self.node(handle), slot)
        return self._expressions[key]
