"""Trees of two-way joins: which inputs meet first, by which keys, and what has to be stored.

An *order* is a sequence that is folded from the left: ``["a", "b", "c"]`` joins a with b and that
with c. Its items may be orders themselves: ``["a", ["b", "c"]]`` joins a with what b and c give.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.multi_key import GraphSpec, KeyClass
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.store import StreamSchema

Order: TypeAlias = str | Sequence["Order"]

#: The two inputs of a node, as its own join calls them.
SIDES = ("left", "right")


@dataclass(frozen=True)
class Leaf:
    """A stream of the join."""

    name: str
    number: int
    """Its place among the streams."""

    @property
    def leaves(self) -> "tuple[Leaf, ...]":
        return (self,)


@dataclass(frozen=True)
class Node:
    """A two-way join, whose result is stored under ``name`` unless it is the root. Its keys are
    compared in the types of the whole join's classes, which other streams may have widened."""

    left: "Leaf | Node"
    right: "Leaf | Node"
    spec: JoinSpec

    @property
    def name(self) -> str:
        return node_name(self.left.name, self.right.name)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The streams below, in the order of the result's columns."""
        return self.left.leaves + self.right.leaves

    def side_of(self, leaf: Leaf) -> str:
        return SIDES[0] if leaf in self.left.leaves else SIDES[1]

    def input_of(self, side: str) -> "Leaf | Node":
        return self.left if side == SIDES[0] else self.right


@dataclass(frozen=True)
class BinaryTree:
    """The nodes of a join in one order; made by ``BinaryTree.create``."""

    join: GraphSpec
    root: Node
    event_time: ClassVar[None] = None

    @classmethod
    def create(cls, spec: JoinSpec | GraphSpec, order: Order) -> "BinaryTree":
        """InvalidArgumentError if the order does not name every stream once, or has two inputs
        meet that share no key."""
        join = as_graph(spec)
        check_order(order, join.streams)
        root = _node(join, order)
        assert isinstance(root, Node), "a join has two streams at least"
        return cls(join, root)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """What a store is opened with: every stream, and the result of every node but the root."""
        return tuple(_stored(self.root))

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream."""
        return self.join.streams

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of a result."""
        return self.join.output_schema

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return self.join.described()

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.join.check_stream(stream)

    def path_of(self, stream: str) -> list[tuple[Node, str]]:
        """The nodes from a stream up to the root, each with the side the rows come from."""
        number = list(self.join.streams).index(stream)
        leaf = Leaf(stream, number)
        path: list[tuple[Node, str]] = []
        node: Leaf | Node = self.root
        while isinstance(node, Node):
            side = node.side_of(leaf)
            path.append((node, side))
            node = node.input_of(side)
        return path[::-1]


def all_orders(spec: JoinSpec | GraphSpec) -> list[Order]:
    """Every order that BinaryTree takes, those that differ only in left and right once.

    Cost: they are many; of n streams with one common key (2n - 3)!!, which is 15 for 4 and 945
    for 6.
    """
    join = as_graph(spec)
    return list(_orders(join, tuple(join.streams)))


def stored_order(spec: JoinSpec | GraphSpec, stored: Sequence[str], where: str) -> Order:
    """The order of the tree whose store has these streams; see ``BinaryTree.stream_schemas``.
    InvalidArgumentError if no tree of the join has them."""
    open_nodes: list[tuple[str, Order]] = []
    for name in stored:
        if name in spec.streams:
            open_nodes.append((name, name))
            continue
        (left, first), (right, second) = [("", ""), ("", ""), *open_nodes][-2:]
        if name != node_name(left, right):
            break
        open_nodes[-2:] = [(name, [first, second])]
    else:
        if len(open_nodes) == 2:
            return [order for _, order in open_nodes]
    raise InvalidArgumentError(
        f"{where} holds the streams {', '.join(stored)}, which are not those of a tree of "
        f"{', '.join(spec.streams)}; open it with the join it was made with, or start a new state"
    )


def check_order(order: Order, streams: Iterable[str]) -> None:
    """InvalidArgumentError unless the order names every stream once."""
    named = sorted(_names(order))
    if named != sorted(streams):
        raise InvalidArgumentError(
            f"order={order!r} names {', '.join(named)}; name every stream once: "
            f"{', '.join(streams)}"
        )


def as_graph(spec: JoinSpec | GraphSpec) -> GraphSpec:
    """The same join as one of key classes; a common key is classes that every stream holds."""
    if isinstance(spec, GraphSpec):
        return spec
    classes = []
    for k, field in enumerate(spec.key_schema):
        columns = {name: spec.keys[name][k] for name in spec.streams}
        classes.append(KeyClass(columns, field.type, columns))
    shown = {name: len(schema) for name, schema in spec.streams.items()}
    return GraphSpec(spec.streams, tuple(classes), shown)


def node_name(left: str, right: str) -> str:
    """What the result of a node is stored under."""
    return f"({left} {right})"


def _names(order: Order) -> list[str]:
    if not isinstance(order, str | Iterable):
        raise InvalidArgumentError(
            f"order={order!r} is a {type(order).__name__}; give the names of the streams in a list"
        )
    return [order] if isinstance(order, str) else [n for part in order for n in _names(part)]


def _node(join: GraphSpec, order: Order) -> Leaf | Node:
    if isinstance(order, str):
        return Leaf(order, list(join.streams).index(order))
    parts = [_node(join, part) for part in order]
    if not parts:
        raise InvalidArgumentError("order: an empty list; name the streams in it")
    node = parts[0]
    for part in parts[1:]:
        node = Node(node, part, _node_spec(join, node, part))
    return node


def _node_spec(join: GraphSpec, left: Leaf | Node, right: Leaf | Node) -> JoinSpec:
    sides = dict(zip(SIDES, (left, right), strict=True))
    shared = _shared(join, _leaf_names(left), _leaf_names(right))
    if not shared:
        raise InvalidArgumentError(
            f"order: {' and '.join(_leaf_names(left))} share no key with "
            f"{' and '.join(_leaf_names(right))}; join them with streams in between first"
        )
    keys = {side: tuple(_holder(join, node, n) for n in shared) for side, node in sides.items()}
    types = pa.schema([(f"k{k}", join.classes[n].type) for k, n in enumerate(shared)])
    return JoinSpec({side: _columns(join, node) for side, node in sides.items()}, keys, types)


def _leaf_names(node: Leaf | Node) -> list[str]:
    return [leaf.name for leaf in node.leaves]


def _shared(join: GraphSpec, left: Sequence[str], right: Sequence[str]) -> list[int]:
    """The classes that both sides hold."""

    def held(names: Sequence[str]) -> set[int]:
        return {number for name in names for number in join.held_by(name)}

    return sorted(held(left) & held(right))


def _columns(join: GraphSpec, node: Leaf | Node) -> pa.Schema:
    """All columns of the streams below, under names that are unique in the join."""
    return pa.schema(
        field.with_name(f"{leaf.number}_{field.name}")
        for leaf in node.leaves
        for field in join.streams[leaf.name]
    )


def _holder(join: GraphSpec, node: Leaf | Node, number: int) -> str:
    """The column of the first stream below that holds a class."""
    columns = join.classes[number].columns
    leaf = next(leaf for leaf in node.leaves if leaf.name in columns)
    return f"{leaf.number}_{columns[leaf.name]}"


def _stored(node: Node) -> Iterator[StreamSchema]:
    for side in SIDES:
        child = node.input_of(side)
        if isinstance(child, Node):
            yield from _stored(child)
        yield StreamSchema(child.name, node.spec.key_schema, node.spec.streams[side])


def _orders(join: GraphSpec, names: tuple[str, ...]) -> Iterator[Order]:
    if len(names) == 1:
        yield names[0]
        return
    # The first stream stays on the left, so that no tree comes twice.
    for mask in range(2 ** (len(names) - 1) - 1):
        left = names[:1] + tuple(n for i, n in enumerate(names[1:]) if mask >> i & 1)
        right = tuple(n for n in names if n not in left)
        if _shared(join, left, right):
            for one in _orders(join, left):
                yield from ([one, other] for other in _orders(join, right))
