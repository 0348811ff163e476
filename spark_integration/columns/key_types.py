"""The type in which join columns are compared: Catalyst's own answer, not a copy of its rules.

Spark analyzes ``a = b`` for two columns of a key. The type that both sides are cast to is the one
in which they are compared. A key of three or more columns is compared in one type for all of them.
That is correct only if no pair that the condition equates loses a difference by it; otherwise the
key is refused.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_classes import Pair
from lsmstate.spark_integration.catalyst.catalyst import compared_type, is_classic
from lsmstate.spark_integration.columns.arrow_substitutes import nullable_parts
from lsmstate.spark_integration.columns.collations import collations_in

#: Of a thread: whether what PySpark logs of failed queries is left out.
_is_quiet: Final = ContextVar("is_quiet", default=False)
#: Metadata of a string column that was declared as CHAR or VARCHAR, or that holds such strings.
_DECLARED: Final = "__CHAR_VARCHAR_TYPE_STRING"
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
    T.YearMonthIntervalType,
    T.CharType,
    T.VarcharType,
    T.NullType,
)
#: PySpark 4.0 does not have it.
_TIME: Final = "time"


class KeyColumn(NamedTuple):
    """One column of a key, for messages and types."""

    stream: str
    column: str
    data_type: T.DataType
    declared: str = ""
    """Spark's text of the type, where that was declared with CHAR or VARCHAR."""

    @classmethod
    def of(cls, stream: str, field: T.StructField) -> "KeyColumn":
        declared = (field.metadata or {}).get(_DECLARED, "")
        return cls(stream, field.name, field.dataType, declared)

    @property
    def place(self) -> Column:
        return Column(self.stream, self.column)

    @property
    def char_lengths(self) -> tuple[int, ...]:
        """The length of each CHAR in the declared type."""
        return tuple(map(int, re.findall(r"\bchar\((\d+)\)", self.declared)))

    @property
    def is_char(self) -> bool:
        """Whether the column itself is a CHAR, not only a part of it."""
        return re.fullmatch(r"char\(\d+\)", self.declared) is not None

    def __str__(self) -> str:
        name = self.declared or self.data_type.simpleString()
        return f"{self.stream}.{self.column} ({name})"


def common_type(
    spark: SparkSession, columns: Sequence[KeyColumn], written: Sequence[Pair] | None
) -> T.DataType:
    """The type in which all columns of one key are compared.

    Args:
        spark: The session.
        columns: The columns of the key.
        written: The columns that are compared with each other; None: each with each.

    Raises:
        InvalidArgumentError: There is no such type.
    """
    equated = None if written is None else {frozenset(pair) for pair in written}
    pairs = {
        (left, right): _compared_in(spark, left, right)
        for left, right in combinations(columns, 2)
        if equated is None or {left.place, right.place} in equated
    }
    common = columns[0].data_type
    for column in columns[1:]:
        common = _compared_in(spark, columns[0]._replace(data_type=common), column)
    unfit = _unfit_part(common)
    if unfit is not None:
        raise InvalidArgumentError(
            f"key columns {', '.join(map(str, columns))}: {unfit.simpleString()} cannot be "
            "(part of) a key, because Spark's = does not compare it; convert a map by "
            "array_sort(map_entries(...)), and anything else to a string or to its parts"
        )
    for (left, right), found in pairs.items():
        if not _keeps_differences(found, common):
            raise InvalidArgumentError(
                f"key columns {left} and {right} are compared as {found.simpleString()}, but "
                f"the whole key {', '.join(map(str, columns))} only as {common.simpleString()}, "
                "in which different values would be equal; cast the columns to one type first"
            )
    # Inside a struct or array Spark casts to a type without nulls only what has none.
    return nullable_parts(common)


def padded_length(columns: Sequence[KeyColumn]) -> int:
    """The length to which shorter CHAR columns of one key are padded; 0 if Spark pads none.

    Spark pads a CHAR that is compared with a longer one, but not one that is compared with a
    string.
    """
    declared = [column for column in columns if column.char_lengths]
    if len({column.char_lengths for column in declared}) < 2:
        return 0
    if len(declared) < len(columns) or not all(column.is_char for column in columns):
        raise InvalidArgumentError(
            f"key columns {', '.join(map(str, columns))}: CHAR columns of different lengths can "
            "be compared only with each other, and not inside a struct or array; cast all of them "
            "to string, or pad the shorter ones first: rpad(column, n, ' ')"
        )
    return max(column.char_lengths[0] for column in declared)


def _parts(data_type: T.DataType) -> list[T.DataType]:
    """The types a nested type is made of; none for a plain one."""
    if isinstance(data_type, T.StructType):
        return [field.dataType for field in data_type]
    return [data_type.elementType] if isinstance(data_type, T.ArrayType) else []


def _unfit_part(data_type: T.DataType) -> T.DataType | None:
    """The type itself, or the part of it, that cannot be a key."""
    if isinstance(data_type, T.UserDefinedType):
        return _unfit_part(data_type.sqlType())
    if isinstance(data_type, T.StructType | T.ArrayType):
        return next(filter(None, map(_unfit_part, _parts(data_type))), None)
    is_fit = isinstance(data_type, _KEY_TYPES) or data_type.typeName() == _TIME
    return None if is_fit else data_type


def _compared_in(spark: SparkSession, left: KeyColumn, right: KeyColumn) -> T.DataType:
    if left.data_type == right.data_type:
        return left.data_type
    if not is_classic(spark):
        raise InvalidArgumentError(
            f"key columns {left} and {right} differ in type, and under Spark Connect their "
            "common type is not known here; cast one of them to the other's type first"
        )
    probe = spark.range(0).select(
        F.lit(None).cast(left.data_type).alias("l"), F.lit(None).cast(right.data_type).alias("r")
    )
    try:
        with quiet_query_log():
            filtered = probe.filter("l = r")
    except AnalysisException as refusal:
        collations = [set(collations_in(column.data_type)) for column in (left, right)]
        remedy = "cast one of them first"
        if collations[0] != collations[1]:
            remedy = "give both one collation first, as in collate(column, 'UTF8_LCASE')"
        raise InvalidArgumentError(
            f"key columns {left} and {right} cannot be compared; {remedy}"
        ) from refusal
    return T._parse_datatype_json_string(compared_type(filtered))


@contextmanager
def quiet_query_log() -> Iterator[None]:
    """Leave out the log record that PySpark writes, with a Java stack, before it raises an analysis
    error. Our own message says enough. Errors of other threads are logged as usual."""
    # Of PySpark's class from the start: made by logging.getLogger it would stay a plain one, which
    # fails when PySpark hands it the error's class.
    PySparkLogger.getLogger("SQLQueryContextLogger").addFilter(_is_told)  # adds it but once
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


def _is_told(_record: logging.LogRecord) -> bool:
    return not _is_quiet.get()


def _keeps_differences(narrow: T.DataType, wide: T.DataType) -> bool:
    """Whether values that differ as ``narrow`` still differ as ``wide``."""
    if narrow == wide or isinstance(narrow, T.NullType):
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
    if isinstance(narrow, T.DayTimeIntervalType | T.YearMonthIntervalType):
        return source is target  # microseconds or months, whatever its fields
    if narrow.typeName() == wide.typeName() == _TIME:
        return bool(vars(narrow)["precision"] <= vars(wide)["precision"])
    if isinstance(narrow, T.FloatType):
        return isinstance(wide, T.DoubleType)
    return isinstance(narrow, T.DateType) and isinstance(wide, T.TimestampType | T.TimestampNTZType)
