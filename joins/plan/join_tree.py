"""A plan: a tree of immutable nodes, from the sources up to the root.

Nodes are compared by identity. A node that is an input of several others is a *shared* subplan: one
node with several outputs. Columns are unique below every node, and a join's sides have none in
common, as after Spark's analyzer; a self-join renames one side by a ``Project``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.plan.conditions import Column, Expression, columns_of

JOIN_KINDS = ("inner", "left outer", "right outer", "full outer", "left semi", "left anti")


@dataclass(frozen=True, eq=False)
class Source:
    """A stream or a table. ``rows`` is an estimate, None if unknown."""

    name: str
    columns: tuple[Column, ...]
    rows: int | None = None
    is_streaming: bool = True
    handle: object = None

    def __post_init__(self) -> None:
        _check_unique(f"source {self.name!r}", self.columns)

    @property
    def inputs(self) -> tuple["Node", ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Join:
    """A two-way join. Without a condition an inner join is a cross product (a comma in SQL)."""

    left: "Node"
    right: "Node"
    condition: Expression | None = None
    kind: str = "inner"
    handle: object = None

    def __post_init__(self) -> None:
        if self.kind not in JOIN_KINDS:
            raise InvalidArgumentError(
                f"join kind {self.kind!r}: must be one of {', '.join(JOIN_KINDS)}"
            )
        both = (*self.left.columns, *self.right.columns)
        _check_unique("join", both)
        _check_known("join", self.condition, both)

    @property
    def inputs(self) -> tuple["Node", ...]:
        return (self.left, self.right)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        if self.kind in ("left semi", "left anti"):
            return self.left.columns
        return (*self.left.columns, *self.right.columns)


@dataclass(frozen=True, eq=False)
class Filter:
    input: "Node"
    condition: Expression
    handle: object = None

    def __post_init__(self) -> None:
        _check_known("filter", self.condition, self.input.columns)

    @property
    def inputs(self) -> tuple["Node", ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns


@dataclass(frozen=True, eq=False)
class Project:
    """Computes each column of its result from the input's."""

    input: "Node"
    values: tuple[tuple[Column, Expression], ...]
    handle: object = None

    def __post_init__(self) -> None:
        _check_unique("projection", self.columns)
        for _, value in self.values:
            _check_known("projection", value, self.input.columns)

    @property
    def inputs(self) -> tuple["Node", ...]:
        return (self.input,)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column, _ in self.values)


@dataclass(frozen=True, eq=False)
class Alias:
    """Names its input and changes nothing: a subquery's alias, a view."""

    input: "Node"
    name: str
    handle: object = None

    @property
    def inputs(self) -> tuple["Node", ...]:
        return (self.input,)

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.input.columns


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate function."""

    function: str
    """As the front end calls it."""
    arguments: tuple[Expression, ...]
    condition: Expression | None
    """Which rows count (FILTER); None: all."""
    is_distinct: bool
    result: int
    """In which of the node's columns it is."""
    handle: object = field(compare=False, repr=False)

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.arguments))
        only = "" if self.condition is None else f" FILTER (WHERE {self.condition})"
        return f"{self.function}({'DISTINCT ' * self.is_distinct}{shown}){only}"


@dataclass(frozen=True)
class Aggregation:
    """What an aggregate computes of its input."""

    groupings: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    beside: frozenset[Column] = frozenset()
    """Columns that its results read outside of calls."""


@dataclass(frozen=True, eq=False)
class Other:
    """Any other operator. Nothing moves through it, and it is never part of a group. ``reads``:
    the columns of its inputs that it needs, None for all of them."""

    name: str
    inputs: tuple["Node", ...]
    columns: tuple[Column, ...]
    is_aggregate: bool = False
    reads: frozenset[Column] | None = None
    aggregation: Aggregation | None = None
    handle: object = None

    def __post_init__(self) -> None:
        _check_unique(self.name, self.columns)


@dataclass(frozen=True)
class KeyClass:
    """Expressions that are equal, and not NULL, in a result: at most one of each input."""

    members: tuple[tuple[int, Expression], ...]
    """(input's position, expression over that input's columns), by position."""

    def __str__(self) -> str:
        return " = ".join(str(expression) for _, expression in self.members)


@dataclass(frozen=True, eq=False)
class MultiJoin:
    """All combinations of one row of each input in which every key class is equal, and every
    condition is true.

    Without conditions, every input is linked to all others by key classes, directly or by way of
    further inputs.
    """

    inputs: tuple["Node", ...]
    keys: tuple[KeyClass, ...]
    group: int
    """Which group of the plan it stands for, counted from 1."""
    conditions: tuple[Expression, ...] = ()
    """On columns of several inputs; none where key classes link all inputs, unless two inputs are
    joined by a distance or a range beside."""
    is_linked: bool = True
    """Whether key classes link all inputs."""
    shown: frozenset[Column] | None = None
    """The columns that are read above; None: all."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        found = (column for node in self.inputs for column in node.columns)
        return tuple(each for each in found if self.shown is None or each in self.shown)

    @cached_property
    def common_keys(self) -> tuple[KeyClass, ...]:
        """The classes with a member of every input."""
        return tuple(key for key in self.keys if len(key.members) == len(self.inputs))

    @cached_property
    def unconnected(self) -> tuple[int, ...]:
        """Positions of the inputs that neither keys nor conditions connect to the first one."""
        near = [{place for place, _ in key.members} for key in self.keys]
        for condition in self.conditions:
            read = columns_of(condition)
            near.append(
                {place for place, node in enumerate(self.inputs) if read & set(node.columns)}
            )
        reached = {0}
        for _ in self.inputs:
            reached = reached.union(*(places for places in near if places & reached))
        return tuple(place for place in range(len(self.inputs)) if place not in reached)


Node = Source | Join | Filter | Project | Alias | Other | MultiJoin


def is_streaming(node: Node) -> bool:
    return any(isinstance(below, Source) and below.is_streaming for below in parents_first(node))


def has_streaming_aggregate(node: Node) -> bool:
    """Whether rows it has given may change later: a streaming aggregate stands in it."""
    return any(
        isinstance(below, Other) and below.is_aggregate and is_streaming(below)
        for below in parents_first(node)
    )


def with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    """The node over other inputs; the node itself if they are the ones it has."""
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node
    match node:
        case Join():
            return replace(node, left=inputs[0], right=inputs[1])
        case Filter() | Project() | Alias():
            return replace(node, input=inputs[0])
        case Other() | MultiJoin():
            return replace(node, inputs=tuple(inputs))
        case Source():
            raise AssertionError("a source has no inputs to replace")


def filtered(node: Node, condition: Expression | None) -> Node:
    return node if condition is None else Filter(node, condition)


def parents_first(root: Node) -> Iterator[Node]:
    """Every node once, after all its outputs; left inputs before right ones."""
    seen: set[Node] = set()
    children_first: list[Node] = []
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            children_first.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in node.inputs)
    return reversed(children_first)


def depth(root: Node) -> int:
    """How many nodes the longest way from the root to a source has."""
    depths: dict[Node, int] = {}
    for node in reversed(list(parents_first(root))):
        depths[node] = 1 + max((depths[child] for child in node.inputs), default=0)
    return depths[root]


def outputs_of(root: Node) -> dict[Node, list[Node]]:
    """The nodes each node is an input of, once per time it is one; none for the root."""
    outputs: dict[Node, list[Node]] = {root: []}
    for node in parents_first(root):
        for child in node.inputs:
            outputs.setdefault(child, []).append(node)
    return outputs


def _check_unique(what: str, columns: Sequence[Column]) -> None:
    seen: set[Column] = set()
    for column in columns:
        if column in seen:
            raise InvalidArgumentError(
                f"{what}: column {column} stands twice; rename one by a projection"
            )
        seen.add(column)


def _check_known(what: str, value: Expression | None, columns: Sequence[Column]) -> None:
    unknown = columns_of(value) - set(columns) if value is not None else frozenset()
    if unknown:
        raise InvalidArgumentError(
            f"{what}: {value} reads {', '.join(sorted(map(str, unknown)))}, which its input lacks; "
            f"it has {', '.join(map(str, columns))}"
        )
