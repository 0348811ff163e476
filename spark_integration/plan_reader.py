"""Catalyst's analyzed plan -> the plan tree of ``joins.plan``.

One call reads the plan; what its text does not say (the columns of operators we do not know,
whether a source is a stream) is asked for node by node. Expressions keep a handle: where in the
plan they stand, so that the writer finds Spark's own object again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from joins.plan.conditions import And, Column, Comparison, Expression, Literal, Not, Opaque, Or
from joins.plan.join_tree import Alias, Filter, Join, Node, Other, Project, Source
from spark_integration.catalyst import OPERATORS, Catalyst

_COMPARISONS: Final = {name: sign for sign, name in OPERATORS.items() if name not in ("And", "Or")}
_JOIN_KINDS: Final = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left outer",
    "RightOuter": "right outer",
    "FullOuter": "full outer",
    "LeftSemi": "left semi",
    "LeftAnti": "left anti",
}
#: Operators whose results change as rows arrive.
_AGGREGATES: Final = ("Aggregate", "Distinct")
#: Expressions whose text leaves nothing out by which two of them could differ in value, if it is
#: said of a cast whether it is tried. Not LIKE: its escape character is left out.
_FULLY_SHOWN: Final = ("Cast", "Add", "Subtract", "Multiply", "Divide", "UnaryMinus")
#: Expressions that hold a plan.
_SUBQUERIES: Final = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
#: Beside those: what depends on a row outside of a subquery has to stay where it is.
_UNMOVABLE: Final = (*_SUBQUERIES, "InSubquery", "OuterReference")
#: What the clock says: of a row that is kept it must be asked anew for each answer.
_CLOCKS: Final = ("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime")

Json = dict[str, Any]


@dataclass(frozen=True)
class NodeHandle:
    """A node of the plan, by the child to take at each step from the root."""

    path: tuple[int, ...]


@dataclass(frozen=True)
class ExpressionHandle:
    """An expression of a node: its condition, or one of its values; then child by child."""

    node: NodeHandle
    slot: int | str
    """Position in a projection, ``filter`` or ``join``."""
    path: tuple[int, ...] = ()
    arguments: tuple[Expression, ...] = ()
    """What it was read with: other arguments make it another expression."""


@dataclass(frozen=True)
class SparkLiteral:
    """The value of a literal: equal where text and type are."""

    text: str
    data_type: str
    handle: ExpressionHandle = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.text) if self.data_type == "string" else self.text


@dataclass(frozen=True)
class ReadPlan:
    """A plan that was read, and where its columns come from."""

    catalyst: Catalyst
    root: Any
    tree: Node
    attributes: dict[Column, tuple[NodeHandle, int]]
    """Per column of a source or of an unknown operator: the node and the place in its output."""
    named: dict[Column, ExpressionHandle]
    """Per computed column: the ``Alias`` that computes it."""
    subqueries: tuple[ExpressionHandle, ...]
    """The expressions in it that hold a plan of their own."""


def read_plan(catalyst: Catalyst, root: Any, *, is_kept: bool = False) -> ReadPlan:
    """InvalidArgumentError if the plan is none that ``joins.plan`` can express. Cost: one call and
    a handful for each node that is no join, filter or projection. ``is_kept``: rows of the joins
    are kept and asked again, so that conditions on the time of day stay above them."""
    reader = _Reader(catalyst, root, (*_UNMOVABLE, *_CLOCKS) if is_kept else _UNMOVABLE)
    tree = reader.read((), iter(catalyst.tree(root)))
    return ReadPlan(catalyst, root, tree, reader.attributes, reader.named, tuple(reader.subqueries))


class _Reader:
    def __init__(self, catalyst: Catalyst, root: Any, unmovable: tuple[str, ...]) -> None:
        self.attributes: dict[Column, tuple[NodeHandle, int]] = {}
        self.named: dict[Column, ExpressionHandle] = {}
        self.subqueries: list[ExpressionHandle] = []
        self._catalyst = catalyst
        self._root = root
        self._unmovable = unmovable
        self._is_deterministic = catalyst.is_deterministic(root)
        self._columns: dict[int, Column] = {}
        self._serial = 0

    def read(self, path: tuple[int, ...], nodes: Iterator[Json]) -> Node:
        """The next node of the preorder, with all below it."""
        node = next(nodes)
        inputs = [self.read((*path, place), nodes) for place in range(node["num-children"])]
        handle = NodeHandle(path)
        match _short(node["class"]), inputs:
            case "Join", [left, right] if _object(node["joinType"]) in _JOIN_KINDS:
                kind = _JOIN_KINDS[_object(node["joinType"])]
                on = node.get("condition")
                condition = self._expression(on, ExpressionHandle(handle, "join")) if on else None
                return Join(left, right, condition, kind, handle)
            case "Filter", [below]:
                condition = self._expression(node["condition"], ExpressionHandle(handle, "filter"))
                return Filter(below, condition, handle)
            case "Project", [below]:
                return self._project(node, below, handle)
            case "SubqueryAlias", [below]:
                return Alias(below, node["identifier"]["name"], handle)
            case "View", [below]:
                return Alias(below, node["desc"]["identifier"]["table"], handle)
            case "ResolvedHint", [below]:
                return Alias(below, "hint", handle)
            case kind, []:
                return self._source(node, handle)
            case kind, _:
                columns = self._output(node, handle)
                is_aggregate = kind in _AGGREGATES
                return Other(kind, tuple(inputs), columns, is_aggregate, handle)

    def _source(self, node: Json, handle: NodeHandle) -> Source:
        relation = self.node(handle)
        is_streaming = self._catalyst.is_streaming(relation)
        name = source_name(node)
        rows = None
        if is_streaming:
            stored = self._catalyst.stored_bytes(relation)
            rows = None if stored is None else max(1, stored // _row_bytes(node))
        return Source(name, self._output(node, handle), rows, is_streaming, handle)

    def _project(self, node: Json, below: Node, handle: NodeHandle) -> Node:
        values: list[tuple[Column, Expression]] = []
        for place, expression in enumerate(node["projectList"]):
            where = ExpressionHandle(handle, place)
            kind = _short(expression[0]["class"])
            if kind == "AttributeReference":
                column = self._column(expression[0])
                values.append((column, column))
            elif kind == "Alias":
                column = self._column(expression[0])
                self.named[column] = where
                inner = replace(where, path=(0,))
                values.append((column, self._expression(expression[1:], inner)))
            else:
                return Other("Project", (below,), self._output(node, handle), handle=handle)
        if len({column for column, _ in values}) < len(values):
            # A column that is selected twice keeps its id.
            return Other("Project", (below,), tuple(dict(values)), handle=handle)
        return Project(below, tuple(values), handle)

    def _output(self, node: Json, handle: NodeHandle) -> tuple[Column, ...]:
        known = node.get("output")
        if not isinstance(known, list) or not all(isinstance(c, list) for c in known):
            known = self._catalyst.output(self.node(handle))
        columns: dict[Column, None] = {}
        for place, attribute in enumerate(known):
            column = self._column(attribute[0])
            columns[column] = None
            # The outermost counts: an operator may add a watermark to the column of its input.
            self.attributes[column] = (handle, place)
        return tuple(columns)

    def _column(self, attribute: Json) -> Column:
        """One per expression id, named as where it is defined."""
        number = attribute["exprId"]["id"]
        return self._columns.setdefault(number, Column(attribute["name"], number))

    def _expression(self, nodes: Sequence[Json], handle: ExpressionHandle) -> Expression:
        return self._read_expression(iter(nodes), handle)

    def _read_expression(self, nodes: Iterator[Json], handle: ExpressionHandle) -> Expression:
        node = next(nodes)
        arguments = tuple(
            self._read_expression(nodes, replace(handle, path=(*handle.path, place)))
            for place in range(node["num-children"])
        )
        match _short(node["class"]), arguments:
            case "AttributeReference", ():
                return self._column(node)
            case "Literal", ():
                return Literal(SparkLiteral(str(node["value"]), str(node["dataType"]), handle))
            case "And", _:
                return And(arguments)
            case "Or", _:
                return Or(arguments)
            case "Not", (operand,):
                return Not(operand)
            case kind, (left, right) if kind in _COMPARISONS:
                return Comparison(left, _COMPARISONS[kind], right)
            case kind, _:
                found = replace(handle, arguments=arguments)
                if kind in _SUBQUERIES:
                    self.subqueries.append(found)
                return Opaque(
                    "Try" * self._is_tried(kind, handle) + self._name(kind, node),
                    arguments,
                    volatile=self._is_volatile(handle),
                    subquery=kind in self._unmovable,
                    handle=found,
                )

    def _is_volatile(self, handle: ExpressionHandle) -> bool:
        if self._is_deterministic:
            return False
        return not self._catalyst.is_deterministic(
            expression_of(self._catalyst, self._root, handle)
        )

    def _is_tried(self, kind: str, handle: ExpressionHandle) -> bool:
        """Whether it is a cast that gives null where others fail, or a value that overflowed."""
        return kind == "Cast" and self._catalyst.is_tried(
            expression_of(self._catalyst, self._root, handle)
        )

    def _name(self, kind: str, node: Json) -> str:
        """Equal names mean equal functions; what the text leaves out makes a name of its own."""
        details = {
            name: value
            for name, value in node.items()
            if name not in ("class", "num-children", "timeZoneId", "left", "right", "child")
            and not _is_places(value)
        }
        if kind not in _FULLY_SHOWN and not all(_is_plain(value) for value in details.values()):
            self._serial += 1
            return f"{kind}[{self._serial}]"
        shown = ", ".join(str(value) for value in details.values() if value is not None)
        return f"{kind}[{shown}]" if shown else kind

    def node(self, handle: NodeHandle) -> Any:
        return node_of(self._catalyst, self._root, handle)


def node_of(catalyst: Catalyst, root: Any, handle: NodeHandle) -> Any:
    """Spark's own node. Cost: a call for each step from the root."""
    node = root
    for place in handle.path:
        node = catalyst.child(node, place)
    return node


def expression_of(catalyst: Catalyst, root: Any, handle: ExpressionHandle) -> Any:
    """Spark's own expression."""
    node = node_of(catalyst, root, handle.node)
    match handle.slot:
        case int():
            found = node.projectList().apply(handle.slot)
        case "join":
            found = node.condition().get()
        case _:
            found = node.condition()
    for place in handle.path:
        found = catalyst.child(found, place)
    return found


def source_name(node: Json) -> str:
    """A short name of a source that has no alias: the last part of its path, or its kind."""
    text = str(node.get("sourceName") or node.get("name") or _short(node["class"]))
    words = re.findall(r"\w+", text)
    return words[-1] if words else "source"


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1].rstrip("$")


def _object(value: Json) -> str:
    return _short(str(value.get("object") or value.get("product-class")))


def _is_places(value: Any) -> bool:
    """Whether it says which children a list of them holds."""
    return isinstance(value, list) and all(isinstance(place, int) for place in value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _row_bytes(node: Json) -> int:
    """A guess: half of what the columns take in Spark."""
    widths = {"long": 8, "double": 8, "timestamp": 8, "string": 20, "binary": 20}
    output = node.get("output") or []
    return max(1, sum(widths.get(str(column[0]["dataType"]), 4) for column in output) // 2)
