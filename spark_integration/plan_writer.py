"""The plan tree of ``joins.plan`` -> Catalyst's plan, around a DataFrame per multi-way join."""

from collections.abc import Callable, Mapping
from typing import Any

from joins.plan.conditions import And, Column, Comparison, Expression, Literal, Not, Opaque, Or
from joins.plan.join_tree import Alias, Filter, Join, MultiJoin, Node, Other, Project, Source
from spark_integration.plan_reader import (
    ExpressionHandle,
    NodeHandle,
    ReadPlan,
    SparkLiteral,
    expression_of,
    node_of,
)

#: A multi-way join -> the plan of its result, and the attribute of each of its columns.
JoinWriter = Callable[[MultiJoin], tuple[Any, Mapping[Column, Any]]]


class PlanWriter:
    """Builds what differs from the plan that was read; the rest is Spark's own, ids included."""

    def __init__(self, read: ReadPlan, write_join: JoinWriter) -> None:
        self._read = read
        self._catalyst = read.catalyst
        self._write_join = write_join
        self._nodes: dict[NodeHandle, Any] = {}
        self._attributes: dict[Column, Any] = {}

    def plan(self, node: Node) -> Any:
        """Spark's plan for a node and all below it."""
        match node:
            case Source():
                return self._node(node.handle)
            case MultiJoin():
                return self._multi_join(node)
            case Filter():
                return self._catalyst.filter(self.expression(node.condition), self.plan(node.input))
            case Project():
                return self._project(node)
            case Join():
                condition = None if node.condition is None else self.expression(node.condition)
                left, right = map(self.plan, node.inputs)
                return self._catalyst.join(self._node(node.handle), left, right, condition)
            case Alias() | Other():
                children = [self.plan(child) for child in node.inputs]
                return self._catalyst.with_children(self._node(node.handle), children)

    def attribute(self, column: Column) -> Any:
        """The column as it stands in the plan that was read."""
        if column not in self._attributes:
            if column in self._read.named:
                found = self._original(self._read.named[column]).toAttribute()
            else:
                handle, place = self._read.attributes[column]
                found = self._node(handle).output().apply(place)
            self._attributes[column] = found
        return self._attributes[column]

    def expression(self, expression: Expression) -> Any:
        """Spark's expression; its own object where nothing in it was replaced."""
        build = self._catalyst.operator
        match expression:
            case Column():
                return self.attribute(expression)
            case Literal(SparkLiteral(handle=handle)):
                return self._original(handle)
            case Comparison(left, operator, right):
                return build(operator, self.expression(left), self.expression(right))
            case Not(operand):
                return build("NOT", self.expression(operand))
            case And(operands) | Or(operands):
                name = "AND" if isinstance(expression, And) else "OR"
                built = self.expression(operands[0])
                for operand in operands[1:]:
                    built = build(name, built, self.expression(operand))
                return built
            case Opaque(handle=ExpressionHandle() as handle):
                original = self._original(handle)
                if expression.arguments == handle.arguments:
                    return original
                arguments = [self.expression(argument) for argument in expression.arguments]
                return self._catalyst.with_children(original, arguments)
            case _:
                raise AssertionError(f"{expression!r} was not read from a plan")

    def _project(self, node: Project) -> Any:
        values = [self._named(column, value) for column, value in node.values]
        return self._catalyst.project(values, self.plan(node.input))

    def _named(self, column: Column, value: Expression) -> Any:
        if value == column:
            return self.attribute(column)
        if column in self._read.named:
            original = self._original(self._read.named[column])
            return self._catalyst.with_children(original, [self.expression(value)])
        built = self._catalyst.alias(self.expression(value), column.name)
        self._attributes[column] = built.toAttribute()
        return built

    def _multi_join(self, node: MultiJoin) -> Any:
        result, columns = self._write_join(node)
        own = [
            self._catalyst.alias(found, column.name, like=self.attribute(column))
            for column, found in columns.items()
            if column in self._read.named or column in self._read.attributes
        ]
        return self._catalyst.project(own, result)

    def _original(self, handle: ExpressionHandle) -> Any:
        return expression_of(self._catalyst, self._read.root, handle)

    def _node(self, handle: object) -> Any:
        assert isinstance(handle, NodeHandle), "a node that was not read from a plan"
        if handle not in self._nodes:
            self._nodes[handle] = node_of(self._catalyst, self._read.root, handle)
        return self._nodes[handle]
