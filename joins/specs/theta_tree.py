"""ThetaTree: joins of two inputs by any condition, one above another, whose results are stored.

Each node is a ThetaSpec of two inputs: a stream, or the result of the node below. Its condition is
what is said of streams on both sides. A condition on one stream belongs to the lowest node above.

Source: the bachelor thesis *Full-history theta joins in micro-batches* (UFRGS 2019), section 4.1,
whose trees are left-deep; orders of any form are ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.predicate import Expression, streams_of, text_of, with_columns
from lsmstate.joins.specs.binary_tree import Order, check_order, node_name
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.store import StreamSchema


@dataclass(frozen=True)
class ThetaNode:
    """A join of two inputs, in the order of the result's columns."""

    leaves: tuple[str, ...]
    """The streams below."""
    inputs: tuple["str | ThetaNode", "str | ThetaNode"]
    spec: ThetaSpec
    """Of the inputs, by their names."""

    @property
    def name(self) -> str:
        """What its result is called as an input."""
        return node_name(*self.spec.streams)


@dataclass(frozen=True)
class ThetaTree:
    """Made by ``create``."""

    join: ThetaSpec
    order: Order
    event_time: ClassVar[None] = None

    @classmethod
    def create(cls, join: ThetaSpec, order: Order) -> "ThetaTree":
        """InvalidArgumentError if the order does not name every stream once."""
        check_order(order, join.streams)
        return cls(join, _frozen(order))

    @cached_property
    def root(self) -> ThetaNode:
        """The node whose results are those of the join."""
        found = self._node(self.order)
        assert isinstance(found, ThetaNode), "a join has two streams at least"
        return found

    @cached_property
    def nodes(self) -> tuple[ThetaNode, ...]:
        """All nodes, the root last."""
        return tuple(_nodes(self.root))

    @cached_property
    def paths(self) -> Mapping[str, tuple[tuple[ThetaNode, str], ...]]:
        """By stream the nodes up to the root, each with the input that its rows come from."""
        found = {}
        for stream in self.join.streams:
            path, name = [], stream
            for node in self.nodes:
                if stream in node.leaves:
                    path.append((node, name))
                    name = node.name
            found[stream] = tuple(path)
        return found

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream."""
        return self.join.streams

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        return self.join.output_schema

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes of all nodes."""
        return tuple(schema for node in self.nodes for schema in node.spec.stream_schemas)

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, the input whose rows it holds: a stream, or a node's result."""
        return {name: own for node in self.nodes for name, own in node.spec.owners.items()}

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return self.join.described()

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.join.check_stream(stream)

    def column(self, stream: str, name: str) -> str:
        """What a column is called in the inputs of nodes."""
        return f"{list(self.join.streams).index(stream)}_{name}"

    def _node(self, order: Order) -> "str | ThetaNode":
        if isinstance(order, str):
            return order
        found, *others = (self._node(part) for part in order)
        for other in others:
            found = self._joined(found, other)
        return found

    def _joined(self, left: "str | ThetaNode", right: "str | ThetaNode") -> ThetaNode:
        inputs = (left, right)
        streams = {_name(each): self._columns(each) for each in inputs}
        columns = {
            Column(stream, name): Column(_name(each), self.column(stream, name))
            for each in inputs
            for stream in _leaves(each)
            for name in self.join.streams[stream].names
        }
        conjuncts = [c for c in self.join.conjuncts if self._is_here(c, left, right)]
        on = " AND ".join(_in_parentheses(with_columns(c, columns)) for c in conjuncts)
        spec = ThetaSpec.create(streams, on or "TRUE")
        return ThetaNode((*_leaves(left), *_leaves(right)), inputs, spec)

    @staticmethod
    def _is_here(conjunct: Expression, left: "str | ThetaNode", right: "str | ThetaNode") -> bool:
        named, sides = streams_of(conjunct), (set(_leaves(left)), set(_leaves(right)))
        if not named <= sides[0] | sides[1]:
            return False
        below = [each for each, of in zip((left, right), sides, strict=True) if named <= of]
        return not below or isinstance(below[0], str)

    def _columns(self, of: "str | ThetaNode") -> pa.Schema:
        return pa.schema(
            field.with_name(self.column(stream, field.name))
            for stream in _leaves(of)
            for field in self.join.streams[stream]
        )


def _frozen(order: Order) -> Order:
    return order if isinstance(order, str) else tuple(map(_frozen, order))


def _name(of: "str | ThetaNode") -> str:
    return of if isinstance(of, str) else of.name


def _leaves(of: "str | ThetaNode") -> tuple[str, ...]:
    return (of,) if isinstance(of, str) else of.leaves


def _nodes(node: ThetaNode) -> Iterator[ThetaNode]:
    for each in node.inputs:
        if isinstance(each, ThetaNode):
            yield from _nodes(each)
    yield node


def _in_parentheses(conjunct: Expression) -> str:
    return f"({text_of(conjunct)})"
