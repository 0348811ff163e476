"""The residual filter: conditions other than equalities of keys filter what the join found."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.pair_condition import PairCondition
from lsmstate.joins.specs.one_key import output_names
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan, is_classic, items, kind_of
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.collations import collations_in
from lsmstate.spark_integration.columns.key_types import KeyColumn, quiet_query_log

#: Expressions that Spark calls deterministic, since they have one value in a micro-batch.
_CHANGING: Final = (
    *("CurrentTimestamp", "Now", "LocalTimestamp", "CurrentDate", "CurrentTime", "CurrentTimeZone"),
    *("CurrentUser", "CurrentDatabase", "CurrentCatalog", "SparkVersion"),
    *("ScalarSubquery", "ListQuery", "InSubquery", "Exists", "LateralSubquery"),
)

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


def check_evaluated_here(
    conditions: Iterable[PairCondition], streams: Mapping[str, DataFrame]
) -> None:
    """InvalidArgumentError for columns that Arrow holds in another way than Spark compares them:
    text under a collation or of fixed length, intervals, and types that travel as others."""
    for condition in conditions:
        for stream, name in condition.columns:
            column = KeyColumn.of(stream, streams[stream].schema[name])
            kind = column.data_type
            is_unlike = type(kind) not in _COMPARED_HERE or collations_in(kind)
            if is_unlike or column.char_lengths:
                raise InvalidArgumentError(
                    f"join condition {str(condition)!r}: {stream}.{name} is "
                    f"{column.declared or kind.simpleString()}, which only Spark can compare; "
                    "compute the comparison before the join, as a BOOLEAN column, or convert the "
                    "column to a plain type such as STRING"
                )


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
