"""Spark's types and Arrow's, and the columns of results.

The mapping is our own, because what a checkpoint holds must not change with a release of PySpark.
An unknown type is refused when the query is built, not in a worker.
"""

from collections import Counter
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.columns.arrow_substitutes import carried_type

#: Columns: DDL, or as PySpark or Arrow have them.
Schema: TypeAlias = str | T.StructType | pa.Schema

#: Metadata that would declare a watermark the joined rows do not keep.
WATERMARK_METADATA = "spark.watermarkDelayMs"

_PLAIN: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", tz="UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
}
#: Types that PySpark 4.0 does not have, by name.
_TIME = "time"
_SPATIAL = ("geometry", "geography")


def struct_type(schema: Schema, what: str) -> T.StructType:
    """Columns as Spark's type. InvalidArgumentError, about ``what``, for anything else, for no
    columns, and for two of one name."""
    found: object = schema
    try:
        if isinstance(schema, str):
            found = T.StructType.fromDDL(schema)
        elif isinstance(schema, pa.Schema):
            found = from_arrow_schema(schema)
    except (PySparkException, pa.ArrowException) as error:
        raise InvalidArgumentError(
            f"{what}={schema!r} is not a list of columns: {error}"
        ) from error
    if not isinstance(found, T.StructType) or not found.names:
        raise InvalidArgumentError(
            f"{what}={schema!r}: give columns as DDL ('id BIGINT, at TIMESTAMP'), a StructType or "
            "a pyarrow.Schema"
        )
    twice = [name for name, n in Counter(n.lower() for n in found.names).items() if n > 1]
    if twice:
        raise InvalidArgumentError(f"{what} has several columns called {twice[0]!r}; rename one")
    return found


def arrow_schema(stream: str, schema: T.StructType) -> pa.Schema:
    """The Arrow schema of a stream's rows. InvalidArgumentError names a type that cannot be
    stored."""
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.dataType, f"{stream}.{field.name}"))
            for field in schema
        ]
    )


def arrow_type(data_type: T.DataType, where: str) -> pa.DataType:
    """Spark's type, as it is carried, in Arrow. Time stamps are kept in UTC, as in Spark. Variants
    and shapes are kept as binaries, with the marks by which Spark recognizes them."""
    return _arrow(carried_type(data_type), where)


def pinned_type(data_type: T.DataType, where: str) -> str:
    """The name of a column's type in a checkpoint: Arrow's, and Spark's if it travels as another
    type."""
    arrow = str(arrow_type(data_type, where))
    return (
        arrow if carried_type(data_type) == data_type else f"{arrow} ({data_type.simpleString()})"
    )


def _arrow(data_type: T.DataType, where: str) -> pa.DataType:
    plain = _PLAIN.get(type(data_type))
    if plain is not None:
        return plain
    name = data_type.typeName()
    if isinstance(data_type, T.StringType):
        return pa.string()
    if isinstance(data_type, T.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if name == _TIME:
        return pa.time64("ns")
    if isinstance(data_type, T.ArrayType):
        return pa.list_(_field("element", data_type.elementType, data_type.containsNull, where))
    if isinstance(data_type, T.MapType):
        return pa.map_(
            _field("key", data_type.keyType, False, where),
            _field("value", data_type.valueType, data_type.valueContainsNull, where),
        )
    if isinstance(data_type, T.StructType):
        return pa.struct([_field(f.name, f.dataType, f.nullable, where) for f in data_type])
    if isinstance(data_type, T.VariantType):
        return _marked_struct(("value", pa.binary()), ("metadata", pa.binary()), variant="true")
    if name in _SPATIAL:
        mark = {name: "true", "srid": str(getattr(data_type, "srid"))}  # noqa: B009
        return _marked_struct(("srid", pa.int32()), ("wkb", pa.binary()), **mark)
    if isinstance(data_type, T.UserDefinedType):
        return _arrow(data_type.sqlType(), where)
    raise InvalidArgumentError(
        f"column {where} has type {data_type.simpleString()}, which cannot be stored; "
        "drop it, or cast it to a string, binary, number, date or time stamp first"
    )


def _field(name: str, data_type: T.DataType, nullable: bool, parent: str) -> pa.Field:
    where = f"{parent}.{name}"
    if isinstance(data_type, T.NullType) and not nullable:
        raise InvalidArgumentError(
            f"column {where} has type void and may not be null, so it has no value that Arrow "
            f"could hold; cast {parent} to a type with values, such as array<string>, first"
        )
    return pa.field(name, _arrow(data_type, where), nullable=nullable)


def _marked_struct(
    first: tuple[str, pa.DataType], last: tuple[str, pa.DataType], **mark: str
) -> pa.DataType:
    """A struct of two fields, with a mark on the last one by which Spark recognizes its own
    type."""
    return pa.struct(
        [pa.field(*first, nullable=False), pa.field(*last, nullable=False, metadata=mark)]
    )


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's leading columns under ``schema``. A column is cast only if its type differs; time
    stamps change the name of their zone, not their bytes."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=False)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def output_fields(schema: T.StructType, names: list[str]) -> list[T.StructField]:
    """A stream's columns in the result: same types and nullability, with the names of the rule."""
    return [
        T.StructField(name, field.dataType, field.nullable, _without_watermark(field.metadata))
        for name, field in zip(names, schema, strict=True)
    ]


def _without_watermark(metadata: dict[str, object] | None) -> dict[str, object]:
    return {k: v for k, v in (metadata or {}).items() if k != WATERMARK_METADATA}
