"""SQL under Spark Connect, which shows no plans: the text is read instead, by sqlglot.

Narrower than what Catalyst's plans allow, and never on trust: a query is converted only if Spark
reads the text as sqlglot does (its explanation of both is the same but for names and ids), and if
the result has the columns that Spark gives the query. Everything else runs as Spark runs it.
"""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.one_key import output_names
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA
from lsmstate.spark_integration.joins.multiway_join import multiway_join
from lsmstate.spark_integration.plan.inputs import UnfitInputError

_DIALECT: Final = "spark"
#: Parts of a SELECT that are understood; each has its own name in releases of sqlglot.
_PARTS: Final = {
    *("expressions", "from", "from_", "joins", "where", "group", "having", "order", "limit"),
    *("distinct",),
}
#: The joined rows, in the text that is made.
_JOINED: Final = "joined"


class UnreadTextError(InvalidArgumentError):
    """The text is none that can be converted; says why."""


@dataclass(frozen=True)
class _Parts:
    """A query taken apart; trees of sqlglot, every column with its table's alias."""

    select: Any
    """The whole of it."""
    tables: Mapping[str, str]
    """Names by alias, in the order of the text."""
    keys: Sequence[Any]
    """Equalities of columns of two tables."""
    filters: Mapping[str, Sequence[Any]]
    """By alias, conditions that read it alone."""
    rest: Sequence[Any]
    """All other conditions."""


def convert_text(
    spark: SparkSession, sql: str, rows: Mapping[str, int], options: Mapping[str, Any]
) -> DataFrame:
    """The query with its joins in one operator. UnreadTextError says why it stays Spark's;
    InvalidArgumentError is that of ``multiway_join``, for options that do not fit. Cost: some ten
    requests to the server."""
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError as missing:
        raise UnreadTextError(
            "Spark Connect shows no plans, and SQL is read by sqlglot, which is not installed; "
            "install lsmstate[connect], or name the streams yourself: multiway_join(...)"
        ) from missing
    if "state_dir" not in options:
        raise UnreadTextError(
            "under Spark Connect the operator needs a directory that workers can write to: "
            "streaming_sql(..., state_dir=...)"
        )
    original = spark.sql(sql)
    schema = original.schema
    try:
        parts = _taken_apart(spark, sqlglot.parse_one(sql, dialect=_DIALECT))
        if _explained(original) != _explained(spark.sql(_text(parts.select))):
            raise UnreadTextError("Spark reads the query otherwise than sqlglot")
        converted = _converted(spark, parts, rows, options).toDF(*schema.names)
        found = converted.schema.simpleString()
    except (SqlglotError, PySparkException, UnfitInputError) as unread:
        raise UnreadTextError(str(unread).splitlines()[0]) from unread
    if found != schema.simpleString():
        raise UnreadTextError(f"its columns would be {found}, not {schema.simpleString()}")
    return converted


def _taken_apart(spark: SparkSession, tree: Any) -> _Parts:
    from sqlglot import exp
    from sqlglot.optimizer.qualify import qualify

    _check_plain(tree)
    named = {part.alias.lower() for part in tree.expressions if isinstance(part, exp.Alias)}
    schema: dict[str, object] = {}
    for table in tree.find_all(exp.Table):
        frame = spark.table(quoted(table.name))
        _check_stream(table.name, frame)
        schema[table.name] = dict.fromkeys(frame.columns, "unknown")
    select = qualify(tree, schema=schema, dialect=_DIALECT)
    # Spark names the rest itself, in the same way in both texts.
    select.set("expressions", [_unnamed(part, named) for part in select.expressions])
    tables = {table.alias_or_name: table.name for table in select.find_all(exp.Table)}
    joins = select.args.get("joins") or ()
    if len(tables) < 2 or len(joins) != len(tables) - 1:
        raise UnreadTextError("there is no join in it")
    where = select.args.get("where")
    conditions = [part for join in joins for part in _conjuncts(_on(join))]
    conditions += _conjuncts(where and where.this)
    keys: list[Any] = []
    rest: list[Any] = []
    filters: dict[str, list[Any]] = {alias: [] for alias in tables}
    for part in conditions:
        read = {column.table for column in part.find_all(exp.Column)}
        if isinstance(part, exp.EQ) and len(read) == 2 and _compares_columns(part):
            keys.append(part)
        elif len(read) == 1 and part.find(exp.Func) is None:
            filters[read.pop()].append(part)
        else:
            rest.append(part)
    if not keys:
        raise UnreadTextError("no equality links the inputs")
    return _Parts(select, tables, keys, filters, rest)


def _unnamed(value: Any, named: set[str]) -> Any:
    """Without the alias that it was given in reading."""
    return value if value.alias.lower() in named else value.unalias()


def _check_plain(tree: Any) -> None:
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or any(q is not tree for q in tree.find_all(exp.Query)):
        raise UnreadTextError("under Spark Connect only a SELECT without others in it is converted")
    others = {name for name, part in tree.args.items() if part} - _PARTS
    if others:
        raise UnreadTextError(f"under Spark Connect {', '.join(sorted(others))} is not converted")
    for table in tree.find_all(exp.Table):
        if {name for name, part in table.args.items() if part} - {"this", "alias"}:
            raise UnreadTextError(f"{_text(table)} is not a view by its name alone")


def _check_stream(name: str, frame: DataFrame) -> None:
    if not frame.isStreaming:
        raise UnreadTextError(f"under Spark Connect only streams are joined, and {name} is none")
    if any(WATERMARK_METADATA in (field.metadata or {}) for field in frame.schema):
        raise UnreadTextError(f"the watermark of {name} would not be known above the join")


def _on(join: Any) -> Any:
    kind = join.method or join.side or join.kind
    if kind not in ("", "INNER", "CROSS") or join.args.get("using"):
        raise UnreadTextError(f"a {kind} join; only inner joins are merged")
    return join.args.get("on")


def _conjuncts(condition: Any) -> list[Any]:
    from sqlglot import exp

    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return _conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*_conjuncts(condition.left), *_conjuncts(condition.right)]
    return [condition]


def _compares_columns(equality: Any) -> bool:
    from sqlglot import exp

    return isinstance(equality.left, exp.Column) and isinstance(equality.right, exp.Column)


def _converted(
    spark: SparkSession, parts: _Parts, rows: Mapping[str, int], options: Mapping[str, Any]
) -> DataFrame:
    """The query over the joined rows. Columns that it does not read do not enter the join."""
    from sqlglot import exp

    used: dict[str, dict[str, None]] = {alias: {} for alias in parts.tables}
    for column in parts.select.find_all(exp.Column):
        if column.table:  # else it names one of the query's own columns, as ORDER BY may
            used[column.table][column.name] = None
    frames = {}
    for alias, name in parts.tables.items():
        frame = spark.table(quoted(name)).alias(alias)
        for condition in parts.filters[alias]:
            frame = frame.where(_text(condition))
        frames[alias] = frame.select(*map(quoted, used[alias]))
    on = " AND ".join(map(_text, parts.keys))
    joined = multiway_join(frames, on, rows=rows or None, **options)
    names = output_names({alias: list(columns) for alias, columns in used.items()})
    select = parts.select.copy()
    select.set("joins", None)
    rest = [part.copy() for part in parts.rest]
    select.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    for column in list(select.find_all(exp.Column)):
        if column.table:
            place = list(used[column.table]).index(column.name)
            column.replace(exp.column(names[column.table][place], _JOINED, quoted=True))
    select = select.from_(exp.to_table("rows_of_join", alias=_JOINED))
    text = _text(select).replace("{", "{{").replace("}", "}}")
    return spark.sql(text.replace("rows_of_join", "{rows}", 1), rows=joined)


def _text(tree: Any) -> str:
    return str(tree.sql(dialect=_DIALECT))


def _explained(df: DataFrame) -> str:
    """Spark's analyzed plan without what two texts of one query differ in: second names of tables,
    and the numbers of a session."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        df.explain("extended")
    plan = printed.getvalue().lower().split("== analyzed logical plan ==", 1)[1]
    lines = plan.split("== optimized", 1)[0].strip().split("\n")[1:]  # the first names the columns
    nodes = [line.lstrip(" :+-~") for line in lines]
    text = "\n".join(node for node in nodes if not node.startswith("subqueryalias"))
    if re.search(r"\.\.\. \d+ more fields", text):
        raise UnreadTextError("its plan is shown in part; raise spark.sql.debug.maxToStringFields")
    numbers: dict[str, str] = {}
    plain = re.sub(r"#\d+", lambda n: numbers.setdefault(n[0], f"#{len(numbers) + 1}"), text)
    return plain.replace("join cross", "join inner")  # a comma is written as CROSS JOIN
