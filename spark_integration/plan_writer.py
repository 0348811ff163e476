"""The plan tree of ``joins.plan`` -> Catalyst's plan, around a DataFrame per multi-way join."""

from collections.abc import Callable, Mapping
from typing import Any

from joins.plan.conditions import And, Column, Comparison, Expression, Literal, Not, Opaque, Or
from joins.plan.join_tree import Alias, Filter, Join, MultiJoin, Node, Other, Project, Source
from spark_integration.plan_reader import ReadPlan, SparkLiteral
from spark_integration.spark_plan import ExpressionHandle, NodeHandle
from spark_integration.watermarks import has_watermark, with_watermark

#: A plan, and its attribute for each column.
Written = tuple[Any, Mapping[Column, Any]]
JoinWriter = Callable[[MultiJoin], Written]


class PlanWriter:
    """Builds what differs from the plan that was read; the rest is Spark's own, ids included."""

    def __init__(
        self,
        read: ReadPlan,
        write_join: JoinWriter,
        *,
        write_stream: Callable[[Source], Written] | None = None,
        write_subquery: Callable[[ExpressionHandle], Any] | None = None,
        passes_watermark: bool = False,
    ) -> None:
        """``write_stream``: what stands for a streaming source, by default itself.
        ``write_subquery``: the plan of a subquery, by default as it was read."""
        self._read = read
        self._catalyst = read.spark.catalyst
        self._write_join = write_join
        self._write_stream = write_stream
        self._write_subquery = write_subquery
        self._passes_watermark = passes_watermark
        self._attributes: dict[Column, Any] = {}

    def plan(self, node: Node) -> Any:
        """Spark's plan for a node and all below it."""
        match node:
            case Source():
                if self._write_stream is None or not node.is_streaming:
                    return self._node(node.handle)
                return self._under_own_ids(*self._write_stream(node))
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
                found = self._catalyst.attribute(self._original(self._read.named[column]))
            else:
                handle, place = self._read.attributes[column]
                found = self._catalyst.output_attributes(self._node(handle))[place]
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
                if self._write_subquery is not None:
                    if handle in self._read.subqueries:
                        return self._catalyst.with_subquery_plan(
                            original, self._write_subquery(handle)
                        )
                elif expression.arguments == handle.arguments:
                    return original
                arguments = [self.expression(argument) for argument in expression.arguments]
                return self._catalyst.with_children(original, arguments)
            case _:
                raise AssertionError(f"{expression!r} was not read from a plan")

    def _project(self, node: Project) -> Any:
        child = self.plan(node.input)
        if not isinstance(node.handle, NodeHandle):
            return self._catalyst.project([self._named(*value) for value in node.values], child)
        # Where it was read a column is written as the user wrote it, in upper case for instance.
        values = [
            self._original(ExpressionHandle(node.handle, place))
            if value == column
            else self._named(column, value)
            for place, (column, value) in enumerate(node.values)
        ]
        return self._catalyst.project(values, child)

    def _named(self, column: Column, value: Expression) -> Any:
        if value == column:
            return self.attribute(column)
        if column in self._read.named:
            original = self._original(self._read.named[column])
            return self._catalyst.with_children(original, [self.expression(value)])
        built = self._catalyst.alias(self.expression(value), column.name)
        self._attributes[column] = self._catalyst.attribute(built)
        return built

    def _multi_join(self, node: MultiJoin) -> Any:
        """Its result under the ids the columns had; keys made for the join end here."""
        result, columns = self._write_join(node)
        plan = self._under_own_ids(result, columns)
        timed = [c for c in node.columns if self._passes_watermark and self._is_timed(c)]
        if not timed:
            return plan
        source = next(side for side in node.inputs if timed[0] in side.columns)
        only_time = Project(source, ((timed[0], timed[0]),))
        return with_watermark(self._catalyst, plan, self.plan(only_time), timed[0].name)

    def _under_own_ids(self, plan: Any, columns: Mapping[Column, Any]) -> Any:
        was = {
            column: self.attribute(column)
            for column in columns
            if column in self._read.named or column in self._read.attributes
        }
        own = [
            self._catalyst.alias(
                columns[column],
                column.name,
                like=attribute,
                keeps_metadata=self._passes_watermark and has_watermark(self._catalyst, attribute),
            )
            for column, attribute in was.items()
        ]
        return self._catalyst.project(own, plan)

    def _is_timed(self, column: Column) -> bool:
        """Whether the plan that was read has a watermark on it."""
        known = column in self._read.named or column in self._read.attributes
        return known and has_watermark(self._catalyst, self.attribute(column))

    def _original(self, handle: ExpressionHandle) -> Any:
        return self._read.spark.expression(handle)

    def _node(self, handle: object) -> Any:
        assert isinstance(handle, NodeHandle), "a node that was not read from a plan"
        return self._read.spark.node(handle)
