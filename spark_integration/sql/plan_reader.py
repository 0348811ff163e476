"""Read Catalyst's analyzed plan as a plan tree of ``lsmstate.joins.plan``.

One call reads the whole plan as text. What the text lacks is asked node by node: the columns of
unknown operators, and whether a source is a stream. Expressions keep a handle with their place in
the plan, by which the writer finds Spark's own object.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
    is_volatile,
)
from lsmstate.joins.plan.join_tree import (
    AggregateCall,
    Aggregation,
    Alias,
    Filter,
    Join,
    Node,
    Other,
    Project,
    Source,
)
from lsmstate.spark_integration.catalyst.catalyst import OPERATORS, Catalyst
from lsmstate.spark_integration.catalyst.plan_nodes import ExpressionHandle, NodeHandle, SparkPlan

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
#: Expressions that Spark takes out of any IF around them, into an operator of their own.
_EAGER: Final = ("PythonUDF", "PythonUDAF")
#: What the clock says: of a row that is kept it must be asked anew for each answer.
_CLOCKS: Final = ("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime")

#: Letters behind whole numbers.
_SUFFIXES: Final = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
#: By type, those that hold all its values in their order.
_WIDER: Final = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
#: Functions by the type of their result.
_TYPES: Final = {"VectorL2Distance": "float", "VectorCosineSimilarity": "float"}
#: What refers to an expression that is evaluated once.
_REFERENCE: Final = "CommonExpressionRef"
#: Operators whose result has the type of their operands, if that is a whole or a floating one.
_OF_ONE_TYPE: Final = ("Add", "Subtract", "Multiply", "UnaryMinus", "Abs", "Least", "Greatest")

Json = dict[str, Any]


@dataclass(frozen=True)
class SparkLiteral:
    """The value of a literal. Two are equal if their text and type are."""

    text: str
    data_type: str
    handle: ExpressionHandle = field(compare=False)

    def __repr__(self) -> str:
        return repr(self.text) if self.data_type == "string" else self.text


@dataclass(frozen=True)
class ReadPlan:
    """A plan that was read, and the origin of its columns."""

    spark: SparkPlan
    tree: Node
    attributes: dict[Column, tuple[NodeHandle, int]]
    """Per column of a source or of an unknown operator: the node and the place in its output."""
    named: dict[Column, ExpressionHandle]
    """Per computed column: the ``Alias`` that computes it."""
    subqueries: tuple[ExpressionHandle, ...]
    """The expressions in it that hold a plan of their own."""


def read_plan(catalyst: Catalyst, root: Any, *, is_kept: bool = False) -> ReadPlan:
    """Read a plan.

    Args:
        catalyst: Access to Spark's plans.
        root: The analyzed plan.
        is_kept: Whether rows of the joins are kept and asked again. Conditions on the time of day
            then stay above the joins.

    Raises:
        InvalidArgumentError: The plan has something that a plan tree cannot express.

    Cost:
        One call, and a handful for each node that is no join, filter or projection.
    """
    reader = _Reader(SparkPlan(catalyst, root), is_kept)
    tree = reader.read((), iter(catalyst.tree(root)))
    subqueries = tuple(reader.subqueries)
    return ReadPlan(reader.spark, tree, reader.attributes, reader.named, subqueries)


class _Reader:
    def __init__(self, spark: SparkPlan, is_kept: bool) -> None:
        self.spark = spark
        self.attributes: dict[Column, tuple[NodeHandle, int]] = {}
        self.named: dict[Column, ExpressionHandle] = {}
        self.subqueries: list[ExpressionHandle] = []
        self._catalyst = spark.catalyst
        self._is_kept = is_kept
        self._unmovable = (*_UNMOVABLE, *_CLOCKS) if is_kept else _UNMOVABLE
        self._is_deterministic = spark.catalyst.is_deterministic(spark.root)
        self._columns: dict[int, Column] = {}
        self._types: dict[Column, str] = {}
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
                return self._other(kind, node, inputs, handle)

    def _source(self, node: Json, handle: NodeHandle) -> Source:
        relation = self.spark.node(handle)
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
                return self._other("Project", node, [below], handle)
        if len({column for column, _ in values}) < len(values):
            # A column that is selected twice keeps its id.
            return self._other("Project", node, [below], handle)
        return Project(below, tuple(values), handle)

    def _output(self, node: Json, handle: NodeHandle) -> tuple[Column, ...]:
        known = node.get("output")
        if not isinstance(known, list) or not all(isinstance(c, list) for c in known):
            known = self._catalyst.output(self.spark.node(handle))
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
        column = self._columns.setdefault(number, Column(attribute["name"], number))
        if isinstance(attribute.get("dataType"), str):
            self._types[column] = attribute["dataType"]
        return column

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
                literal = self._literal(node, handle)
                is_null = node["value"] is None
                sql = None if is_null else literal_sql(literal.text, literal.data_type)
                return Literal(literal, sql)
            case "Between", (And() as both,):  # what stands for it
                return both
            case kind, _ if kind in (_REFERENCE, "CommonExpressionDef"):
                found = replace(handle, arguments=arguments)
                number = self._catalyst.shared_number(self.spark.expression(handle))
                data_type = str(node.get("dataType", ""))
                return Opaque(f"{kind}[{data_type}]", arguments, number, handle=found)
            case "With", (of, *definitions) if not any(map(is_volatile, definitions)):
                return _inlined(of, definitions)
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
                is_ours = kind == "PythonUDF" and node["name"] in self._catalyst.own_functions
                name = node["name"] if is_ours else _name(kind, node)
                return Opaque(
                    "Try" * self._is_tried(kind, handle) + name,
                    arguments,
                    0 if is_ours or _shows_all(kind, node) else self._next_serial(),
                    volatile=self._is_volatile(handle),
                    subquery=kind in self._unmovable,
                    eager=kind in _EAGER,
                    widens=kind == "Cast" and self._widens(arguments[0], str(node["dataType"])),
                    handle=found,
                )

    def _is_volatile(self, handle: ExpressionHandle) -> bool:
        if self._is_deterministic:
            return False
        return not self._catalyst.is_deterministic(self.spark.expression(handle))

    def _is_tried(self, kind: str, handle: ExpressionHandle) -> bool:
        """Whether it is a ``try_cast``, which gives null where another cast fails."""
        return kind == "Cast" and self._catalyst.is_tried(self.spark.expression(handle))

    def _widens(self, of: Expression, data_type: str) -> bool:
        if isinstance(of, Literal):
            return is_exact(str(of.sql), data_type)
        return data_type in _WIDER.get(self._type_of(of), ())

    def _type_of(self, expression: Expression) -> str:
        """The name of its type; empty where it is not known here."""
        match expression:
            case Column():
                return self._types.get(expression, "")
            case Literal(SparkLiteral(data_type=data_type)):
                return data_type
            case Opaque(name, arguments):
                kind, _, details = name.partition("[")
                if kind in ("Cast", _REFERENCE):
                    return details.partition(",")[0].rstrip("]")
                return self._type_of(arguments[0]) if kind in _OF_ONE_TYPE else _TYPES.get(kind, "")
        return ""

    def _literal(self, node: Json, handle: ExpressionHandle) -> SparkLiteral:
        kind, text = node["dataType"], str(node["value"])
        if kind == "binary" or not isinstance(kind, str):
            # The text of an array of Java is its place in memory, another one in every run.
            text = self._catalyst.sql(self.spark.expression(handle))
        return SparkLiteral(text, str(kind), handle)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _other(self, kind: str, node: Json, inputs: list[Node], handle: NodeHandle) -> Other:
        """InvalidArgumentError for what cannot be split, or would be answered wrong."""
        if kind == "WithCTE":
            # A copy for each place would have random values of its own.
            raise InvalidArgumentError(
                "a WITH clause that is not deterministic is referenced several times, and its rows "
                "would differ from place to place; write it to a table, or reference it once"
            )
        if self._is_kept and _streams_in_subquery(node):
            raise InvalidArgumentError(
                f"a subquery in the {kind} of the query reads a stream, which staged mode does not "
                "support there; compute it in a WITH clause, and join that"
            )
        columns = self._output(node, handle)
        is_aggregate = kind in _AGGREGATES
        if kind != "Aggregate":
            return Other(kind, tuple(inputs), columns, is_aggregate, handle=handle)
        reads, aggregation = self._read_by(node, inputs), self._aggregation(node, handle)
        return Other(kind, tuple(inputs), columns, is_aggregate, reads, aggregation, handle)

    def _aggregation(self, node: Json, handle: NodeHandle) -> Aggregation:
        groupings = tuple(
            self._expression(nodes, ExpressionHandle(handle, ("grouping", place)))
            for place, nodes in enumerate(node["groupingExpressions"])
        )
        found: list[AggregateCall | Column] = []
        for place, nodes in enumerate(node["aggregateExpressions"]):
            found += self._calls(iter(nodes), ExpressionHandle(handle, ("result", place)), place)
        calls = tuple(part for part in found if isinstance(part, AggregateCall))
        beside = frozenset(part for part in found if isinstance(part, Column))
        return Aggregation(groupings, calls, beside)

    def _calls(
        self, nodes: Iterator[Json], handle: ExpressionHandle, result: int
    ) -> list[AggregateCall | Column]:
        """The calls of aggregate functions in the next expression of the preorder, and the columns
        beside them."""
        node = next(nodes)
        parts = [replace(handle, path=(*handle.path, at)) for at in range(node["num-children"])]
        if _short(node["class"]) == "AttributeReference":
            return [self._column(node)]
        if _short(node["class"]) != "AggregateExpression":
            return [found for part in parts for found in self._calls(nodes, part, result)]
        function = next(nodes)
        arguments = tuple(
            self._read_expression(nodes, replace(parts[0], path=(*parts[0].path, at)))
            for at in range(function["num-children"])
        )
        condition = self._read_expression(nodes, parts[1]) if len(parts) > 1 else None
        name = _short(function["class"])
        return [AggregateCall(name, arguments, condition, node["isDistinct"], result, handle)]

    def _read_by(self, node: Json, inputs: Sequence[Node]) -> frozenset[Column]:
        """Of the columns of the inputs, those in the node's expressions."""
        numbers = {
            part["exprId"]["id"] for part in _parts(node) if "exprId" in part and "dataType" in part
        }
        return frozenset(
            column for below in inputs for column in below.columns if column.number in numbers
        )


def source_name(node: Json) -> str:
    """A short name of a source that has no alias: the last part of its path, or its kind."""
    text = str(node.get("sourceName") or node.get("name") or _short(node["class"]))
    words = re.findall(r"\w+", text)
    return words[-1] if words else "source"


def literal_sql(text: str, data_type: str) -> str | None:
    """A literal as conditions of joins have it; None where they have none of the type."""
    if data_type in _SUFFIXES and re.fullmatch(r"-?\d+", text):
        return text + _SUFFIXES[data_type]
    if data_type in ("double", "float") and re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text):
        return text + data_type[0].upper()
    if data_type.startswith("decimal") and re.fullmatch(r"-?\d+(\.\d+)?", text):
        return text + "BD"
    if data_type == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        return f"DATE '{text}'"
    if data_type == "string":
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return text.upper() if data_type == "boolean" else None


def is_exact(literal: str, data_type: str) -> bool:
    """Whether a whole number is the same in another type of numbers."""
    digits = re.fullmatch(r"-?(\d{1,7})[YSL]?", literal)
    is_number = data_type in ("short", "integer", "long", "float", "double")
    return digits is not None and (is_number or data_type.startswith("decimal"))


def _inlined(of: Expression, definitions: Sequence[Expression]) -> Expression:
    """What Spark evaluates once, as the operand of BETWEEN, in each place that refers to it."""
    values = {each.serial: each.arguments[0] for each in definitions if isinstance(each, Opaque)}

    def filled(part: Expression) -> Expression:
        match part:
            case Column() | Literal():
                return part
            case Comparison(left, operator, right):
                return Comparison(filled(left), operator, filled(right))
            case And(operands) | Or(operands):
                return replace(part, operands=tuple(map(filled, operands)))
            case Not(operand):
                return Not(filled(operand))
            case Opaque():
                if part.name.startswith(_REFERENCE):
                    return values.get(part.serial, part)
                return replace(part, arguments=tuple(map(filled, part.arguments)))

    return filled(of)


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1].rstrip("$")


def _object(value: Json) -> str:
    return _short(str(value.get("object") or value.get("product-class")))


def _parts(value: Any) -> Iterator[Json]:
    """The objects in the text of a node: itself, its expressions, the plans in those."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _parts(part)


def _streams_in_subquery(node: Json) -> bool:
    """Whether an expression of the node holds a plan that reads a stream."""
    return any("Streaming" in _short(part.get("class", "")) for part in _parts(node))


def _name(kind: str, node: Json) -> str:
    """The name of an expression and its details beside the arguments; the same in every run."""
    found = [
        str(value)
        for value in _details(node)
        if _is_plain(value) or (kind in _FULLY_SHOWN and value is not None)
    ]
    return f"{kind}[{', '.join(found)}]" if found else kind


def _shows_all(kind: str, node: Json) -> bool:
    """Whether two expressions of one name are the same function."""
    return kind in _FULLY_SHOWN or all(map(_is_plain, _details(node)))


def _details(node: Json) -> list[Any]:
    return [
        value
        for name, value in node.items()
        if name not in ("class", "num-children", "timeZoneId", "left", "right", "child")
        and not _is_places(value)
    ]


def _is_places(value: Any) -> bool:
    """Whether the value lists the positions of children."""
    return isinstance(value, list) and all(isinstance(place, int) for place in value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def _row_bytes(node: Json) -> int:
    """An estimate: half of the size of the columns in Spark."""
    widths = {"long": 8, "double": 8, "timestamp": 8, "string": 20, "binary": 20}
    output = node.get("output") or []
    return max(1, sum(widths.get(str(column[0]["dataType"]), 4) for column in output) // 2)
