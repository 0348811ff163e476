"""The type in which join columns are compared: Catalyst's own answer, not a copy of its rules.

For every two columns of a key Spark is asked to analyze ``a = b``; what it casts both sides to is
the type they are compared in. A key of three or more columns is compared in one type for all,
which is right only where no pair loses a difference by it; where one does, the join is refused.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError

_BINARY_COLLATION = "UTF8_BINARY"
_INTEGER_DIGITS: dict[type[T.DataType], int] = {
    T.ByteType: 3,
    T.ShortType: 5,
    T.IntegerType: 10,
    T.LongType: 20,
}
#: Integers up to these digits stay apart in the type.
_EXACT_DIGITS: dict[type[T.DataType], int] = {
    T.FloatType: 5,
    T.DoubleType: 10,
    **_INTEGER_DIGITS,
}
#: Types without parts that may be a key; structs and arrays of them may be one too.
_KEY_TYPES: tuple[type[T.DataType], ...] = (
    *_INTEGER_DIGITS,
    T.BooleanType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
)


class KeyColumn(NamedTuple):
    """One column of a key, for messages and types."""

    stream: str
    column: str
    data_type: T.DataType

    def __str__(self) -> str:
        return f"{self.stream}.{self.column} ({self.data_type.simpleString()})"


def common_type(spark: SparkSession, columns: Sequence[KeyColumn]) -> T.DataType:
    """The type all columns of one key are compared in; InvalidArgumentError if there is none."""
    for column in columns:
        _check_collation(column, column.data_type)
    pairs = {
        (left, right): _compared_in(spark, left, right) for left, right in combinations(columns, 2)
    }
    common = columns[0].data_type
    for column in columns[1:]:
        common = _compared_in(spark, columns[0]._replace(data_type=common), column)
    unfit = _unfit_part(common)
    if unfit is not None:
        raise InvalidArgumentError(
            f"join columns {', '.join(map(str, columns))}: {unfit.simpleString()} cannot be "
            "(part of) a join key; join on a map as array_sort(map_entries(...)), on anything else "
            "as a cast to string, or on parts of it"
        )
    for (left, right), found in pairs.items():
        if not _keeps_differences(found, common):
            raise InvalidArgumentError(
                f"join columns {left} and {right} are compared as {found.simpleString()}, but "
                f"the whole key {', '.join(map(str, columns))} only as {common.simpleString()}, "
                "which would call different values equal; cast the columns to one type first"
            )
    # Inside a struct or array Spark casts to a type without nulls only what has none.
    return _nullable(common)


def _parts(data_type: T.DataType) -> list[T.DataType]:
    """The types a nested type is made of; none for a plain one."""
    if isinstance(data_type, T.StructType):
        return [field.dataType for field in data_type]
    return [data_type.elementType] if isinstance(data_type, T.ArrayType) else []


def _unfit_part(data_type: T.DataType) -> T.DataType | None:
    """The type itself, or the part of it, that cannot be a key."""
    if isinstance(data_type, T.StructType | T.ArrayType):
        return next(filter(None, map(_unfit_part, _parts(data_type))), None)
    return None if isinstance(data_type, _KEY_TYPES) else data_type


def _nullable(data_type: T.DataType) -> T.DataType:
    """The type with every nested value nullable."""
    if isinstance(data_type, T.StructType):
        return T.StructType([T.StructField(f.name, _nullable(f.dataType)) for f in data_type])
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_nullable(data_type.elementType))
    return data_type


def _check_collation(column: KeyColumn, data_type: T.DataType) -> None:
    for part in _parts(data_type):
        _check_collation(column, part)
    collation = getattr(data_type, "collation", _BINARY_COLLATION)
    if isinstance(data_type, T.StringType) and collation != _BINARY_COLLATION:
        raise InvalidArgumentError(
            f"join column {column} has collation {collation}, under which different strings are "
            f"equal; join on collate({column.column}, '{_BINARY_COLLATION}') or on "
            f"collation_key({column.column}) instead"
        )


def _compared_in(spark: SparkSession, left: KeyColumn, right: KeyColumn) -> T.DataType:
    if left.data_type == right.data_type:
        return left.data_type
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidArgumentError(
            f"join columns {left} and {right} differ in type, and under Spark Connect their "
            "common type is not known here; cast one of them to the other's type first"
        )
    probe = spark.range(0).select(
        F.lit(None).cast(left.data_type).alias("l"), F.lit(None).cast(right.data_type).alias("r")
    )
    try:
        with _quiet_query_log():
            filtered = probe.filter("l = r")
    except AnalysisException as refusal:
        raise InvalidArgumentError(
            f"join columns {left} and {right} cannot be compared; cast one of them first"
        ) from refusal
    condition = filtered._jdf.queryExecution().analyzed().condition()
    return T._parse_datatype_json_string(condition.left().dataType().json())


@contextmanager
def _quiet_query_log() -> Iterator[None]:
    """PySpark logs an analysis error with its Java stack before it raises it; ours says enough."""
    logger = logging.getLogger("SQLQueryContextLogger")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _keeps_differences(narrow: T.DataType, wide: T.DataType) -> bool:
    """Whether values that differ as ``narrow`` still differ as ``wide``."""
    if narrow == wide:
        return True
    source, target = type(narrow), type(wide)
    if source is target and _parts(narrow):
        pairs = zip(_parts(narrow), _parts(wide), strict=True)
        return all(_keeps_differences(*pair) for pair in pairs)
    if source in _INTEGER_DIGITS:
        digits = _INTEGER_DIGITS[source]
        if isinstance(wide, T.DecimalType):
            return bool(wide.precision - wide.scale >= min(digits, 19))
        return bool(_EXACT_DIGITS.get(target, 0) >= digits)
    if isinstance(narrow, T.DecimalType) and isinstance(wide, T.DecimalType):
        more_scale = wide.scale >= narrow.scale
        return bool(more_scale and wide.precision - wide.scale >= narrow.precision - narrow.scale)
    if isinstance(narrow, T.DayTimeIntervalType):
        return isinstance(wide, T.DayTimeIntervalType)  # microseconds, whatever its fields
    if isinstance(narrow, T.FloatType):
        return isinstance(wide, T.DoubleType)
    return isinstance(narrow, T.DateType) and isinstance(wide, T.TimestampType | T.TimestampNTZType)
