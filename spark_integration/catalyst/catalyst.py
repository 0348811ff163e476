"""Catalyst over py4j: the only module that reads or builds Spark's own plans.

It is also the only one that takes JVM objects from PySpark.

None of it is public API of Spark. So the releases whose differences are known are listed (it is
tested with 4.3), and a small round trip at the first use checks that this release has all that is
needed.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, cast

import pyarrow as pa
from py4j.java_gateway import get_field
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType

from lsmstate.errors import InvalidArgumentError

#: Releases by how many booleans their InlineCTE takes.
_INLINE_CTE_ARGUMENTS: Final = {"4.0": 2, "4.1": 2, "4.2": 2, "4.3": 3}
#: Comparisons and connectives that are built by their class; all else is built of what was read.
OPERATORS: Final = {
    "=": "EqualTo",
    "<=>": "EqualNullSafe",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "AND": "And",
    "OR": "Or",
    "NOT": "Not",
}
#: Where an expression stands in a node: its place in a projection; ``filter`` or ``join``; what it
#: is of an aggregate, and its place there.
Slot = int | str | tuple[str, int]
#: The ids of the first and of the last column of a plan, and how many columns it has.
ColumnIds = tuple[int, int, int]
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
OUTPUT_MODES: Final = ("append", "update", "complete")

_CATALYST: Final = "org.apache.spark.sql.catalyst."
#: What a query ends with as Spark plans such a join.
_UNLINKED: Final = "Stream-stream join without equality predicate is not supported"

_tested: set[str] = set()


def is_classic(spark: SparkSession) -> bool:
    """Whether plans and the JVM can be reached: not under Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def jvm_of(spark: SparkSession) -> Any:
    """The JVM of a classic session."""
    return spark._jvm


@lru_cache(maxsize=100)
def java_class(jvm: Any, name: str) -> Any:
    """A class of the JVM by its full name, which costs a call the first time."""
    return getattr(jvm, name)


def context_of(spark: SparkSession) -> Any:
    """Its SparkContext in the JVM."""
    return spark._jsc.sc()


def streams_of(spark: SparkSession) -> Any:
    """Its running queries in the JVM."""
    return spark._jsparkSession.streams()


def hadoop_of(spark: SparkSession) -> Any | None:
    """Its Hadoop configuration; None under Spark Connect, whose client cannot see it."""
    return spark._jsc.hadoopConfiguration() if is_classic(spark) else None


def analyzed_plan(df: DataFrame) -> Any:
    """The analyzed plan of a classic DataFrame."""
    return df._jdf.queryExecution().analyzed()


def column_ids(df: DataFrame) -> ColumnIds:
    """By what the columns of a classic DataFrame are known in a plan above it."""
    output = analyzed_plan(df).output()
    count = output.size()
    first, last = (output.apply(at).exprId().id() for at in (0, count - 1))
    return int(first), int(last), int(count)


def is_same_plan(plan: Any, other: Any) -> bool:
    """Whether plans are equal, node by node."""
    return bool(plan.equals(other))


def column_node(column: Column) -> Any | None:
    """What a classic Column stands for, as a tree of nodes of the JVM; None under Spark Connect."""
    java = getattr(column, "_jc", None)
    return None if java is None else java.node()


def nodes_with_path(plan: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Every node of a plan, each with the nodes above it, the nearest first. A ``WITH`` clause
    comes as often as it is referenced."""
    clauses: dict[int, Any] = {}
    stack: list[tuple[Any, list[Any]]] = [(plan, [])]
    while stack:
        node, above = stack.pop()
        yield node, above
        kind = kind_of(node)
        nodes = items(node.children())
        if kind == "WithCTE":
            *definitions, body = nodes
            clauses |= {clause.id(): clause for clause in definitions}
            nodes = [body]
        elif kind == "CTERelationRef":
            nodes = [clauses[node.cteId()]]
        stack += [(child, [node, *above]) for child in nodes]


def calls_python(plan: Any) -> bool:
    """Whether a plan contains a Python function. Cost: one call."""
    patterns = java_class(SparkContext._jvm, _CATALYST + "trees.TreePattern")
    return bool(plan.containsPattern(patterns.PYTHON_UDF()))


def kind_of(node: Any) -> str:
    """The name of a node's class."""
    return str(node.nodeName())


def items(sequence: Any) -> list[Any]:
    """What a Scala sequence holds."""
    return [sequence.apply(place) for place in range(sequence.size())]


def compared_type(filtered: DataFrame) -> Any:
    """The type, as JSON, that both sides of a DataFrame's filter ``l = r`` are cast to."""
    return analyzed_plan(filtered).condition().left().dataType().json()


def mapped_together(
    functions: Sequence[tuple[DataFrame, ArrowFunction]], schema: T.StructType
) -> DataFrame:
    """The union of what ``mapInArrow`` makes of each DataFrame with its function. If plans can be
    built, it is analyzed once instead of twice per DataFrame."""
    try:
        catalyst = Catalyst(functions[0][0].sparkSession)
    except InvalidArgumentError:
        mapped = (frame.mapInArrow(function, schema) for frame, function in functions)
        return reduce(DataFrame.unionAll, mapped)
    plans = [
        catalyst.map_in_arrow(analyzed_plan(frame), function, schema)
        for frame, function in functions
    ]
    return catalyst.dataframe(catalyst.union(plans))


def inlined_arrays(frame: DataFrame, count: int) -> DataFrame:
    """The first columns of a frame, ``count`` arrays of structs, multiplied: a row for each choice
    of a struct from each of them, with the fields of all structs after the other columns.

    If plans can be built, it is one node for each array, where ``select`` makes two, of which one
    names all columns. Spark walks through all of them in every micro-batch.
    """
    try:
        catalyst = Catalyst(frame.sparkSession)
    except InvalidArgumentError:
        names = frame.columns[:count]
        for name in names:
            frame = frame.select("*", F.inline(F.col(f"`{name}`")))
        return frame.drop(*names)
    plan = analyzed_plan(frame)
    for _ in range(count):
        plan = catalyst.inline_first(plan)
    return catalyst.dataframe(plan)


def observed(frame: DataFrame, name: str, metrics: Sequence[str]) -> DataFrame:
    """The frame with an observation of some metrics, which are SQL text."""
    try:
        catalyst = Catalyst(frame.sparkSession)
    except InvalidArgumentError:
        return frame.observe(name, *map(F.expr, metrics))
    first, others = catalyst.columns(tuple(metrics))
    return ClassicDataFrame(frame._jdf.observe(name, first, others), frame.sparkSession)


def collation_version(spark: SparkSession, name: str) -> str:
    """The version of the library that makes the keys of a collation."""
    factory = jvm_of(spark).org.apache.spark.sql.catalyst.util.CollationFactory
    return str(get_field(factory.fetchCollation(name), "version"))


def collation_keys(frame: DataFrame, names: Iterable[str]) -> dict[str, Column]:
    """By column of the frame, Spark's keys of its values under their collations."""
    jvm = jvm_of(frame.sparkSession)
    inject = jvm.org.apache.spark.sql.catalyst.expressions.CollationKey.injectCollationKey
    convert = jvm.org.apache.spark.sql.classic.ExpressionUtils
    attributes = analyzed_plan(frame).output()
    return {
        name: Column(convert.column(inject(attributes.apply(frame.columns.index(name)))))
        for name in names
    }


def scaled(frame: DataFrame, decimals: Mapping[str, T.DecimalType]) -> dict[str, Column]:
    """Columns of the frame, which hold the unscaled values of decimals of at most 18 digits, as
    those decimals. Cost where Spark runs it: a check of their digits."""
    jvm = jvm_of(frame.sparkSession)
    make = java_class(jvm, _CATALYST + "expressions.MakeDecimal")
    column = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils").column
    attributes = analyzed_plan(frame).output()
    found = {}
    for name, decimal in decimals.items():
        units = attributes.apply(frame.columns.index(name))
        found[name] = Column(column(make(units, decimal.precision, decimal.scale, False)))
    return found


@lru_cache(maxsize=2)
def _columns(jvm: Any, texts: tuple[str, ...]) -> tuple[Any, Any]:
    """Parsed once, not with each query."""
    parse = java_class(jvm, _CATALYST + "parser.CatalystSqlParser")().parseExpression
    column = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils").column
    first, *others = map(column, map(parse, texts))
    return first, jvm.PythonUtils.toSeq(others)


def _release(spark: SparkSession) -> str:
    return ".".join(spark.version.split(".")[:2])


class Catalyst:
    """Plans of one classic session. Plans, nodes and expressions are handles to JVM objects.

    Cost: each call is a few py4j calls (0.1 to 0.3 ms each), whatever the plan's size, unless it
    says otherwise.
    """

    def __init__(self, spark: SparkSession) -> None:
        """InvalidArgumentError, with the version, if plans of the session cannot be read."""
        if not is_classic(spark):
            raise InvalidArgumentError("Spark Connect does not expose query plans")
        release = _release(spark)
        if release not in _INLINE_CTE_ARGUMENTS:
            raise InvalidArgumentError(
                f"Spark {spark.version}: query plans can be read and built in the releases "
                f"{', '.join(_INLINE_CTE_ARGUMENTS)} only; install one of those, or name the "
                "streams yourself: multiway_join(...)"
            )
        self.spark = spark
        #: Names of Python functions in a plan that are known to be those of this library.
        self.own_functions: Collection[str] = ()
        self._session: Any = spark._jsparkSession
        try:
            self._jvm = cast(Any, spark._jvm)
            inline_cte = self._class("optimizer.InlineCTE")
            self._inline = inline_cte(*(False, False, False)[: _INLINE_CTE_ARGUMENTS[release]])
            option = java_class(self._jvm, "scala.Option")
            self._none, self._some = option.empty(), option.apply
            utils = java_class(self._jvm, "org.apache.spark.api.python.PythonUtils")
            self._to_seq = utils.toSeq
            self._no_values = self._seq([])
            if spark.version not in _tested:
                self._self_test()
                _tested.add(spark.version)
        except (Py4JError, PySparkException, TypeError, ValueError, KeyError) as missing:
            raise self._unable(missing) from missing

    def analyzed(self, df: DataFrame) -> Any:
        """The analyzed plan, with common table expressions in place of their names."""
        return self.inlined(analyzed_plan(df))

    def inlined(self, plan: Any) -> Any:
        """The plan with a copy of each common table expression where it is referenced. Those that
        are referenced several times and are not deterministic stay, and so does what could not be
        resolved."""
        return self._inline.apply(plan)

    def parsed(self, sql: str) -> Any:
        """The analyzed plan of a query, without the checks that a streaming query has to pass.
        InvalidArgumentError, with the version, if Spark's parser or analyzer cannot be called."""
        state: Any = self._session.sessionState()
        try:
            analyze, parse = state.analyzer().execute, state.sqlParser().parsePlan
            return self.inlined(analyze(parse(sql)))
        except Py4JJavaError:
            raise
        except Py4JError as missing:  # no such method
            raise self._unable(missing) from missing

    def columns(self, texts: tuple[str, ...]) -> tuple[Any, Any]:
        """The first and the others, which are SQL text, as columns of the JVM."""
        return _columns(self._jvm, texts)

    def tree(self, plan: Any) -> list[dict[str, Any]]:
        """All nodes in preorder, each with its expressions; one call, about 1 ms a node."""
        found: list[dict[str, Any]] = json.loads(plan.toJSON())
        return found

    def child(self, node: Any, place: int) -> Any:
        """A child of a plan or of an expression."""
        return node.children().apply(place)

    def slot(self, node: Any, slot: Slot) -> Any:
        """An expression of a node: by its place in a projection, or the condition of a ``filter``
        or ``join``; of an aggregate one of its groupings or results."""
        if isinstance(slot, int):
            return node.projectList().apply(slot)
        if isinstance(slot, tuple):
            kind, place = slot
            listed = node.groupingExpressions if kind == "grouping" else node.aggregateExpressions
            return listed().apply(place)
        return node.condition().get() if slot == "join" else node.condition()

    def output(self, node: Any) -> list[list[dict[str, Any]]]:
        """The columns of a plan, as ``tree`` gives attributes."""
        nothing = self._logical("OneRowRelation")()
        attributes = self._logical("Project")(node.output(), nothing)
        columns: list[list[dict[str, Any]]] = self.tree(attributes)[0]["projectList"]
        return columns

    def output_attributes(self, node: Any) -> list[Any]:
        """The same as expressions; a call a column."""
        return items(node.output())

    def output_attribute(self, node: Any, place: int) -> Any:
        """One of them."""
        return node.output().apply(place)

    def attribute(self, value: Any) -> Any:
        """What an ``Alias`` is called above its node."""
        return value.toAttribute()

    def column_metadata(self, attribute: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(attribute.metadata().json())
        return found

    def subquery_plan(self, expression: Any) -> Any:
        return expression.plan()

    def with_subquery_plan(self, expression: Any, plan: Any) -> Any:
        return expression.withNewPlan(plan)

    def gives_the_same(self, plan: Any, other: Any) -> bool:
        """Whether the plans are the same except for the ids of their columns."""
        return bool(plan.sameResult(other))

    def is_streaming(self, node: Any) -> bool:
        return bool(node.isStreaming())

    def is_stream_of_known_columns(self, plan: Any) -> bool:
        """Whether all its names were resolved, and it reads a stream, also in a subquery."""
        if not plan.resolved():
            return False
        return self.is_streaming(plan) or "Streaming" in plan.toString()

    def is_deterministic(self, node: Any) -> bool:
        """Of a plan, with all below it, or of an expression."""
        return bool(node.deterministic())

    def is_tried(self, cast: Any) -> bool:
        """Whether it is ``try_cast``, which ``tree`` shows as any other cast."""
        return str(cast.evalMode().toString()) == "TRY"

    def shared_number(self, part: Any) -> int:
        """Of an expression that is evaluated once for several places, or of a reference to it: by
        what both are told, which ``tree`` leaves out."""
        return int(part.id().id())

    def sql(self, expression: Any) -> str:
        """The expression as SQL text."""
        return str(expression.sql())

    def with_children(self, node: Any, children: Iterable[Any]) -> Any:
        """A plan or an expression over other children."""
        return node.withNewChildren(self._seq(children))

    def operator(self, name: str, *operands: Any) -> Any:
        """One of ``OPERATORS``."""
        return self._expression(OPERATORS[name])(*operands)

    def choice(self, condition: Any, value: Any, other: Any) -> Any:
        """``IF(condition, value, other)``, of which only the chosen value is evaluated, except for
        Python functions."""
        return self._expression("If")(condition, value, other)

    def nullable_type(self, attribute: Any) -> Any:
        """Its type, any part of which may be null."""
        return attribute.dataType().asNullable()

    def cast(self, value: Any, data_type: Any) -> Any:
        """The value in a type of ``nullable_type``; itself if it has that. Structs go by place."""
        if self.nullable_type(value).equals(data_type):
            return value
        return self._expression("Cast")(value, data_type, self._none)

    def alias(
        self, value: Any, name: str, like: Any = None, *, without_metadata: str | None = None
    ) -> Any:
        """The value under a name. With ``like``, it has the id and qualifier of that attribute and
        its metadata (comments, lengths of CHAR), without those of one name."""
        if like is None:
            expr_id = self._expression("NamedExpression").newExprId()
            qualifier, metadata = self._no_values, self._none
        else:
            expr_id, qualifier = like.exprId(), like.qualifier()
            metadata = self._some(self._metadata(like, without_metadata))
        alias = self._expression("Alias")
        return alias(value, name, expr_id, qualifier, metadata, self._no_values)

    def type_json(self, expression: Any) -> str:
        """The type of an expression, as JSON."""
        return str(expression.dataType().json())

    def aggregate_function(self, call: Any) -> Any:
        """The function that is called in a call of an aggregate."""
        return call.aggregateFunction()

    def shown_name(self, function: Any) -> str:
        """The name of a function as SQL has it."""
        return str(function.prettyName())

    def children_count(self, node: Any) -> int:
        """How many children a plan or an expression has."""
        return int(node.children().size())

    def is_same(self, expression: Any, other: Any) -> bool:
        """Whether the expressions say the same of the same columns."""
        return bool(expression.semanticEquals(other))

    def window_of(self, plan: Any) -> Any:
        """The window of time that is all that a plan selects."""
        return plan.child().projectList().apply(0).child()

    def aggregated(self, plan: Any) -> list[Any]:
        """What an aggregate computes, without the names."""
        return [value.child() for value in items(plan.aggregateExpressions())]

    def aggregate(self, groupings: Sequence[Any], results: Sequence[Any], child: Any) -> Any:
        """The results, which are named, of each group."""
        make = self._logical("Aggregate")
        return make(self._seq(groupings), self._seq(results), child, self._none)

    def filter(self, condition: Any, child: Any) -> Any:
        return self._logical("Filter")(condition, child)

    def project(self, values: Sequence[Any], child: Any) -> Any:
        return self._logical("Project")(self._seq(values), child)

    def union(self, children: Iterable[Any]) -> Any:
        """All rows of the children, whose columns go by their place; under the ids of the first."""
        return self._logical("Union")(self._seq(children), False, False)

    def map_in_arrow(self, plan: Any, function: ArrowFunction, schema: T.StructType) -> Any:
        """As ``DataFrame.mapInArrow``, over all columns of the plan."""
        kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        created = cast(Any, pandas_udf)(function, schema, kind)._unwrapped._judf
        call = created.builder(plan.output())
        types = self._class("types.DataTypeUtils")
        output = types.toAttributes(call.dataType())
        return self._logical("MapInArrow")(call, output, plan, False, self._none)

    def inline_first(self, plan: Any) -> Any:
        """As ``inline`` of the first column, an array of structs, which then is left out."""
        generator = self._expression("Inline")(self.output_attribute(plan, 0))
        fields = self._class("types.DataTypeUtils").toAttributes(generator.elementSchema())
        return self._logical("Generate")(generator, self._seq([0]), False, self._none, fields, plan)

    def join(self, node: Any, left: Any, right: Any, condition: Any | None) -> Any:
        """A join of the same kind as ``node``."""
        on = self._none if condition is None else self._some(condition)
        return self._logical("Join")(left, right, node.joinType(), on, node.hint())

    def dataframe(self, plan: Any) -> DataFrame:
        """The plan as a DataFrame. AnalysisException if Spark refuses it."""
        dataset = java_class(self._jvm, "org.apache.spark.sql.classic.Dataset")
        jdf = dataset.ofRows(self._session, plan)
        df: DataFrame = ClassicDataFrame(jdf, self.spark)
        return df

    def refusal(self, plan: Any, mode: str) -> str | None:
        """Why Spark does not stream the plan in one of ``OUTPUT_MODES``; None if it does."""
        checker = self._class("analysis.UnsupportedOperationChecker")
        modes = java_class(self._jvm, "org.apache.spark.sql.streaming.OutputMode")
        try:
            checker.checkForStreaming(plan, getattr(modes, mode.capitalize())())
        except (PySparkException, Py4JJavaError) as refusal:
            return str(refusal).splitlines()[0]
        return None

    def unlinked_join(self, plan: Any) -> str | None:
        """Why Spark would fail a streaming query as it plans its first micro-batch: a join of
        streams that no equality links. None if it would not. Cost: planning the query."""
        mode = java_class(self._jvm, "org.apache.spark.sql.execution.ExplainMode")
        execution = self.dataframe(plan)._jdf.queryExecution()  # of an analyzed plan, or no stream
        try:
            execution.explainString(mode.fromString("simple"))
        except (PySparkException, Py4JJavaError) as refusal:
            return _UNLINKED if _UNLINKED in str(refusal) else None
        return None

    def stored_bytes(self, relation: Any) -> int | None:
        """Bytes of the files of a file source; None for other sources and for patterns."""
        try:
            source = relation.dataSource()
            paths = items(source.paths())
            options = source.options()
            if options.contains("path"):
                paths.append(options.apply("path"))
            new_path = java_class(self._jvm, "org.apache.hadoop.fs.Path")
            configuration = self._session.sessionState().newHadoopConf()
            total = 0
            for path in map(new_path, paths):
                total += path.getFileSystem(configuration).getContentSummary(path).getLength()
        except (Py4JError, PySparkException):
            return None
        return int(total) or None

    def _metadata(self, attribute: Any, without: str | None) -> Any:
        found = attribute.metadata()
        if without is None or not found.contains(without):
            return found
        builder = java_class(self._jvm, "org.apache.spark.sql.types.MetadataBuilder")()
        return builder.withMetadata(found).remove(without).build()

    def _class(self, name: str) -> Any:
        return java_class(self._jvm, _CATALYST + name)

    def _expression(self, name: str) -> Any:
        return self._class("expressions." + name)

    def _logical(self, name: str) -> Any:
        return self._class("plans.logical." + name)

    def _seq(self, values: Iterable[Any]) -> Any:
        return self._to_seq(list(values))

    def _unable(self, missing: Exception) -> InvalidArgumentError:
        reason = str(missing).splitlines()[0]
        return InvalidArgumentError(
            f"Spark {self.spark.version} cannot build query plans here: {reason}; name the "
            "streams yourself: multiway_join(...)"
        )

    def _self_test(self) -> None:
        """Check that a plan that is read, taken apart and built again gives its row."""
        # Built without SQL text: Spark's parser takes half a second of CPU the first time.
        rows = self.spark.range(3).select((F.col("id") + 1).alias("x")).where(F.col("x") == 2)
        plan = self.inlined(analyzed_plan(rows))
        kinds = [node["class"].rsplit(".", 1)[1] for node in self.tree(plan)]
        if kinds != ["Filter", "Project", "Range"]:
            raise ValueError(f"a plan of three nodes is read as {', '.join(kinds)}")
        attribute = self.output_attributes(plan)[0]
        one = self.child(plan.condition(), 1)
        same = self.operator("=", attribute, one)
        project = self.child(plan, 0)
        built = self.filter(same, self.with_children(project, [self.child(project, 0)]))
        renamed = self.project([self.alias(attribute, "y")], built)
        if self.is_streaming(renamed) or not self.is_deterministic(renamed):
            raise ValueError("a static plan is taken for a stream, or for a random one")
        if [column[0]["name"] for column in self.output(renamed)] != ["y"]:
            raise ValueError("the columns of a plan are read wrong")
        self.alias(one, "y", like=attribute)
        mapped = self.map_in_arrow(
            renamed, lambda batches: batches, T.StructType().add("y", "long")
        )
        if calls_python(renamed) or not calls_python(mapped):
            raise ValueError("functions in Python are not found in a plan")
        self.columns(("count(1) AS n",))
        self.refusal(renamed, OUTPUT_MODES[0])
        arrays = self.spark.range(1).select(F.array(F.struct(F.lit(1).alias("z"))).alias("zs"))
        inlined = self.inline_first(analyzed_plan(arrays))
        if [column[0]["name"] for column in self.output(inlined)] != ["z"]:
            raise ValueError("the fields of structs are read wrong")
        if self.dataframe(renamed).schema.names != ["y"]:
            raise ValueError("a rebuilt plan lost its column")
