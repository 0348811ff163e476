"""Write a plan tree of ``lsmstate.joins.plan`` as Catalyst's plan, with a DataFrame per multi-way
join."""

from collections.abc import Callable, Mapping
from typing import Any

from lsmstate.joins.plan.conditions import (
    And,
    Column,
    Comparison,
    Expression,
    Literal,
    Not,
    Opaque,
    Or,
)
from lsmstate.joins.plan.join_tree import (
    Alias,
    Filter,
    Join,
    MultiJoin,
    Node,
    Other,
    Project,
    Source,
)
from lsmstate.joins.plan.prune import computed_keys
from lsmstate.spark_integration.catalyst.catalyst import Catalyst
from lsmstate.spark_integration.catalyst.plan_nodes import ExpressionHandle, NodeHandle
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA
from lsmstate.spark_integration.sql.plan_reader import ReadPlan, SparkLiteral
from lsmstate.spark_integration.sql.watermarks import has_watermark, with_watermark

#: A plan, and its attribute for each column.
Written = tuple[Any, Mapping[Column, Any]]
JoinWriter = Callable[[MultiJoin], Written]


class PlanWriter:
    """Builds the parts of the plan that differ from the one that was read. All else is Spark's own,
    with its ids."""

    def __init__(
        self,
        read: ReadPlan,
        write_join: JoinWriter,
        *,
        write_stream: Callable[[Source], Written] | None = None,
        write_subquery: Callable[[ExpressionHandle], Any] | None = None,
        write_nodes: Mapping[Node, Callable[["PlanWriter"], Any]] | None = None,
        passes_watermark: bool = False,
    ) -> None:
        """Prepare the writer.

        Args:
            read: The plan that was read.
            write_join: Writes a multi-way join.
            write_stream: Writes what stands for a streaming source; default: the source itself.
            write_subquery: Writes the plan of a subquery; default: as it was read.
            write_nodes: Nodes that are written in another way, with all below them.
            passes_watermark: Whether watermarks of the inputs are declared above the joins too.
        """
        self._read = read
        self._catalyst = read.spark.catalyst
        self._write_join = write_join
        self._write_stream = write_stream
        self._write_subquery = write_subquery
        self._write_nodes = write_nodes or {}
        self._passes_watermark = passes_watermark
        self._attributes: dict[Column, Any] = {}

    @property
    def catalyst(self) -> Catalyst:
        """Access to Spark's plans."""
        return self._catalyst

    def plan(self, node: Node) -> Any:
        """Spark's plan for a node and all below it. Inputs are written first, because they define
        the columns that the original plan lacks."""
        if node in self._write_nodes:
            return self._write_nodes[node](self)
        match node:
            case Source():
                if self._write_stream is None or not node.is_streaming:
                    return self._node(node.handle)
                return self._under_own_ids(*self._write_stream(node))
            case MultiJoin():
                return self._multi_join(node)
            case Filter():
                child = self.plan(node.input)
                return self._catalyst.filter(self.expression(node.condition), child)
            case Project():
                return self._project(node)
            case Join():
                left, right = map(self.plan, node.inputs)
                condition = None if node.condition is None else self.expression(node.condition)
                return self._catalyst.join(self._node(node.handle), left, right, condition)
            case Other(name="Union"):
                # It may have gained inputs, or have others together by now.
                return self._catalyst.union([self.plan(child) for child in node.inputs])
            case Alias() | Other():
                children = [self.plan(child) for child in node.inputs]
                return self._catalyst.with_children(self._node(node.handle), children)

    def define(self, attributes: Mapping[Column, Any]) -> None:
        """Set the attributes of columns that the original plan lacks."""
        self._attributes |= attributes

    def attribute(self, column: Column) -> Any:
        """The column as the original plan has it."""
        if column not in self._attributes:
            if column in self._read.named:
                found = self._catalyst.attribute(self._original(self._read.named[column]))
            else:
                handle, place = self._read.attributes[column]
                found = self._catalyst.output_attribute(self._node(handle), place)
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
            return self._catalyst.project([self.named(*value) for value in node.values], child)
        # Where it was read a column is written as the user wrote it, in upper case for instance.
        values = [
            self._original(ExpressionHandle(node.handle, place))
            if value == column
            else self.named(column, value)
            for place, (column, value) in enumerate(node.values)
        ]
        return self._catalyst.project(values, child)

    def named(self, column: Column, value: Expression) -> Any:
        """The value under the id and name of a column of the original plan."""
        if value == column:
            return self.attribute(column)
        if column in self._read.named:
            original = self._original(self._read.named[column])
            return self._catalyst.with_children(original, [self.expression(value)])
        if column in self._read.attributes:
            return self.renamed(self.expression(value), column)
        built = self._catalyst.alias(self.expression(value), column.name)
        self._attributes[column] = self._catalyst.attribute(built)
        return built

    def _multi_join(self, node: MultiJoin) -> Any:
        """Its result under the ids the columns had; keys made for the join end here, columns that
        were renamed because an input had them too do not."""
        result, columns = self._write_join(node)
        made = {c for c in computed_keys(node) if not self._was_read(c)}
        kept = {c: attribute for c, attribute in columns.items() if c not in made}
        return self.with_watermark_of(node, self._under_own_ids(result, kept))

    def with_watermark_of(self, node: MultiJoin, plan: Any) -> Any:
        """The plan, which holds results of the join, with the watermark of the join's inputs if
        that is to be passed on."""
        timed = list(filter(self.passes_watermark, node.columns))
        if not timed:
            return plan
        source = next(side for side in node.inputs if timed[0] in side.columns)
        only_time = Project(source, ((timed[0], timed[0]),))
        return with_watermark(self._catalyst, plan, self.plan(only_time), timed[0].name)

    def passes_watermark(self, column: Column) -> bool:
        """Whether the original plan has a watermark on the column that is to be passed on."""
        return (
            self._passes_watermark
            and self._was_read(column)
            and has_watermark(self._catalyst, self.attribute(column))
        )

    def renamed(self, value: Any, column: Column) -> Any:
        """The value under the id and name of a column of the original plan, with the metadata of
        that column. The watermark is kept only if it is to be passed on."""
        return self._catalyst.alias(
            value,
            column.name,
            like=self.attribute(column),
            without_metadata=None if self.passes_watermark(column) else WATERMARK_METADATA,
        )

    def _under_own_ids(self, plan: Any, columns: Mapping[Column, Any]) -> Any:
        return self._catalyst.project(self.own(columns), plan)

    def own(self, columns: Mapping[Column, Any]) -> list[Any]:
        """The attributes under the ids that the columns have in the original plan. Columns that it
        lacks are known by them from now on."""
        own = []
        for column, attribute in columns.items():
            if self._was_read(column):
                own.append(self.renamed(attribute, column))
            else:
                self._attributes[column] = attribute
                own.append(attribute)
        return own

    def _was_read(self, column: Column) -> bool:
        return column in self._read.named or column in self._read.attributes

    def _original(self, handle: ExpressionHandle) -> Any:
        return self._read.spark.expression(handle)

    def _node(self, handle: object) -> Any:
        assert isinstance(handle, NodeHandle), "a node that was not read from a plan"
        return self._read.spark.node(handle)
