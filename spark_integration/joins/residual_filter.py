"""The residual filter: conditions other than equalities of keys filter what the join found."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from threading import RLock
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.distances import DISTANCES, LEVENSHTEIN, distances
from lsmstate.joins.conditions.evaluate import may_fail
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.conditions.predicate import (
    Call,
    Constant,
    Duration,
    Element,
    Expression,
    Field,
    all_parts,
    parts_of,
    text_of,
)
from lsmstate.joins.specs.one_key import output_names
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan, is_classic, items, kind_of
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.collations import collations_in
from lsmstate.spark_integration.columns.key_types import KeyColumn, quiet_query_log
from lsmstate.spark_integration.joins.watermarks import has_whole_days

#: Expressions that Spark calls deterministic, since they have one value in a micro-batch.
_CHANGING: Final = (
    *("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime", "CurrentTimeZone"),
    *("CurrentUser", "CurrentDatabase", "CurrentCatalog", "SparkVersion"),
    *("ScalarSubquery", "ListQuery", "InSubquery", "Exists", "LateralSubquery"),
)

#: Distances that Spark does not know.
_DISTANCES: Final = tuple(name for name in DISTANCES if name != LEVENSHTEIN)
#: Held by a thread for which they are registered.
_registering: Final = RLock()
#: What joins that are not inner compare themselves, beside their keys.
_COMPARED_HERE: Final = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType),
    *(T.FloatType, T.DoubleType, T.StringType, T.BinaryType, T.DateType),
    *(T.TimestampType, T.TimestampNTZType),
)


def filtered(
    joined: DataFrame,
    columns: Mapping[str, Sequence[str]],
    conditions: Sequence[str],
    *,
    others: Sequence[str] = (),
    unless: str | None = None,
    takes_back: bool = False,
) -> DataFrame:
    """Filter the joined rows by conditions, which Spark evaluates by its own rules.

    Args:
        joined: The result of the operator.
        columns: Columns of each stream; conditions name them ``stream.column``.
        conditions: The conditions, as SQL text. All of them must be true.
        others: Columns of ``joined`` that belong to no stream.
        unless: Name of a column; rows for which it is true are not filtered.
        takes_back: Whether results may be retracted. A condition must then have the same value for
            ever.

    Returns:
        The filtered rows.

    Raises:
        InvalidArgumentError: Spark cannot evaluate a condition; the message has its reason.
            Conditions on CHAR columns are refused too, because Spark would pad these.

    Cost:
        The evaluation only. Spark's optimizer removes the structs that are made here.
    """
    if not conditions:
        return joined
    with distances_known(joined.sparkSession, conditions):
        return _filtered(joined, columns, conditions, others, unless, takes_back)


def _filtered(
    joined: DataFrame,
    columns: Mapping[str, Sequence[str]],
    conditions: Sequence[str],
    others: Sequence[str],
    unless: str | None,
    takes_back: bool,
) -> DataFrame:
    names = output_names(columns)
    padded = {field.name for field in joined.schema if KeyColumn.of("", field).char_lengths}

    def structs(left_out: Collection[str] = ()) -> DataFrame:
        """A struct for each stream, without some columns of ``joined``."""
        return joined.select(
            *(
                F.struct(
                    *(
                        F.col(quoted(found)).alias(column)
                        for column, found in zip(own, names[name], strict=True)
                        if found not in left_out
                    )
                ).alias(name)
                for name, own in columns.items()
            ),
            *map(quoted, others),
        )

    by_stream = structs()
    for condition in conditions:
        try:
            with quiet_query_log():
                wanted = F.expr(condition)
                by_stream = by_stream.where(
                    wanted if unless is None else wanted | F.col(quoted(unless))
                )
        except (AnalysisException, ParseException) as refusal:
            reason = str(refusal).splitlines()[0]
            raise InvalidArgumentError(
                f"join condition {condition!r}: {reason} Name columns as stream.column; the "
                f"streams are {', '.join(columns)}"
            ) from refusal
        if takes_back:
            _check_lasts(condition, by_stream)
        if padded:
            _check_pads_nothing(condition, structs(padded))
    shown = {
        found: F.col(f"{quoted(name)}.{quoted(column)}").alias(found)
        for name, own in columns.items()
        for column, found in zip(own, names[name], strict=True)
    }
    return by_stream.select(*(shown.get(name, quoted(name)) for name in joined.columns))


def left_to_spark(condition: str) -> str:
    """The line of an explanation for a condition that ``filtered`` takes."""
    return f"condition {condition}: left to Spark, which evaluates it on each result"


@contextmanager
def distances_known(spark: SparkSession, texts: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Make the distances known to Spark that texts of SQL name, as temporary functions.

    A function of the user's of that name is left as it is. Gives the names of those that are ours.
    They are gone afterwards, except under Spark Connect, which looks names up later.
    """
    named = [
        name
        for name in _DISTANCES
        if any(re.search(rf"\b{name}\s*\(", text, re.IGNORECASE) for text in texts)
    ]
    if not named:
        yield ()
        return
    with _registering:
        ours = tuple(name for name in named if not spark.catalog.functionExists(name))
        for name in ours:
            spark.udf.register(name, _distance_udf(name))
        try:
            yield ours
        finally:
            if is_classic(spark):
                for name in ours:
                    spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")


def _distance_udf(name: str) -> Any:
    def of_pairs(a: pa.Array, b: pa.Array) -> pa.Array:
        return distances(name, [a, b])

    def of_pair(a: Any, b: Any) -> float | None:
        if a is None or b is None:
            return None
        found: float | None = of_pairs(pa.array([a]), pa.array([b]))[0].as_py()
        return found

    arrow_udf = getattr(F, "arrow_udf", None)
    if arrow_udf is None:  # PySpark 4.0
        return F.udf(of_pair, "double")
    return arrow_udf(of_pairs, "double")


def check_evaluated_here(
    conditions: Iterable[PairCondition], streams: Mapping[str, DataFrame]
) -> None:
    """InvalidArgumentError for what is evaluated here in another way than by Spark: columns that
    Arrow holds in another way, such as text under a collation or of fixed length; a mixture of time
    stamps and local times outside of UTC, days in a time zone where they differ in length;
    arithmetic and casts without ANSI mode."""
    for condition in conditions:
        kinds = [
            _compared_kind(condition, part, streams) for part in _named_parts(condition.predicate)
        ]
        spark = next(iter(streams.values())).sparkSession
        has_zone = any(isinstance(kind, T.TimestampType) for kind in kinds)
        if has_zone and _mixes_times(condition, kinds) and not _is_utc(spark):
            raise InvalidArgumentError(
                f"join condition {str(condition)!r} compares a TIMESTAMP with a date, a local time "
                "or text, which depends on the session's time zone; set "
                "spark.sql.session.timeZone to UTC, or convert one of them before the join"
            )
        if has_zone and _has_days(condition) and not has_whole_days(spark):
            raise InvalidArgumentError(
                f"join condition {str(condition)!r} counts days, and a day of the session's time "
                "zone may have 23 or 25 hours; write hours, or set spark.sql.session.timeZone to "
                "UTC"
            )
        if may_fail(condition.predicate) and not _is_ansi(spark):
            raise InvalidArgumentError(
                f"join condition {str(condition)!r} computes, which is done here as in ANSI mode; "
                "set spark.sql.ansi.enabled to true, or compute it as a column before the join"
            )


def _named_parts(predicate: Expression) -> Sequence[Expression]:
    """Columns and nested fields that it names, without the columns that those are parts of."""
    found: list[Expression] = []
    stack = [predicate]
    while stack:
        part = stack.pop()
        if isinstance(part, Column | Field | Element):
            found.append(part)
        elif isinstance(part, Call) and part.name in _DISTANCES:
            continue  # of vectors and sets, which Arrow holds as Spark does
        else:
            stack += reversed(parts_of(part))
    return found


def _compared_kind(
    condition: PairCondition, part: Expression, streams: Mapping[str, DataFrame]
) -> T.DataType:
    """Spark's type of a column or a part of one. InvalidArgumentError if only Spark compares it."""
    stack = [part]
    while isinstance(stack[-1], Field | Element):
        stack.append(stack[-1].of)
    root = stack.pop()
    assert isinstance(root, Column)
    column = KeyColumn.of(root.stream, streams[root.stream].schema[root.name])
    kind = column.data_type
    for step in reversed(stack):
        kind = _part_kind(kind, step)
    is_unlike = type(kind) not in _COMPARED_HERE or collations_in(kind)
    if is_unlike or column.char_lengths:
        raise InvalidArgumentError(
            f"join condition {str(condition)!r}: {text_of(part)} is "
            f"{column.declared or kind.simpleString()}, which only Spark can compare; compute the "
            "comparison before the join, as a BOOLEAN column, or convert the column to a plain "
            "type such as STRING"
        )
    return kind


def _part_kind(kind: T.DataType, step: Expression) -> T.DataType:
    if isinstance(kind, T.StructType) and isinstance(step, Field):
        for field in kind:
            if field.name.lower() == step.name.lower():
                return field.dataType
    if isinstance(kind, T.MapType):
        return kind.valueType
    return kind.elementType if isinstance(kind, T.ArrayType) else kind


def _mixes_times(condition: PairCondition, kinds: Sequence[T.DataType]) -> bool:
    others = (T.DateType, T.TimestampNTZType, T.StringType)
    if any(isinstance(kind, others) for kind in kinds):
        return True
    values = [p.value for p in all_parts(condition.predicate) if isinstance(p, Constant)]
    calls = [p.name for p in all_parts(condition.predicate) if isinstance(p, Call)]
    is_written = any(isinstance(value, date | str) for value in values)
    return is_written or any(name in ("datediff", "date_add") for name in calls)


def _has_days(condition: PairCondition) -> bool:
    values = [p.value for p in all_parts(condition.predicate) if isinstance(p, Constant)]
    return any(isinstance(value, Duration) and value.has_days for value in values)


def _is_utc(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.sql.session.timeZone")).upper() in ("UTC", "ETC/UTC", "Z")


def _is_ansi(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"


def _check_pads_nothing(condition: str, without_chars: DataFrame) -> None:
    """InvalidArgumentError for a condition that needs a CHAR column: Spark pads what is compared
    with such a column, but not if it is part of a struct."""
    try:
        with quiet_query_log():
            _ = without_chars.where(F.expr(condition)).schema
    except AnalysisException:
        raise InvalidArgumentError(
            f"join condition {condition!r} uses a CHAR column, which Spark does not pad inside a "
            "join condition; compute the comparison as a column before the join, or filter the "
            "result: join(...).where(...)"
        ) from None


def _check_lasts(condition: str, found: DataFrame) -> None:
    """InvalidArgumentError unless the last condition that ``found`` is filtered by has the same
    value for the same row for ever."""
    if not is_classic(found.sparkSession):
        raise InvalidArgumentError(
            f"join condition {condition!r}: whether it has the same value for ever stands in the "
            "query plan, which Spark Connect does not expose; filter the result: "
            "join(...).where(...)"
        )
    stack = [analyzed_plan(found).condition()]
    while stack:
        expression = stack.pop()
        children = items(expression.children())
        is_random = not expression.deterministic() and all(c.deterministic() for c in children)
        if is_random or kind_of(expression) in _CHANGING:
            raise InvalidArgumentError(
                f"join condition {condition!r}: {expression.sql()} may have another value when a "
                "result is retracted than when it was emitted; use only columns of the streams and "
                "constants, or filter the final result"
            )
        stack += children
