"""Spark's types <-> Arrow's, and the columns of the joined result.

The mapping is our own, because what crosses a checkpoint must not change with a release of
PySpark; a type that is not listed is refused when the join is built, not in a worker.
"""

import pyarrow as pa
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError

#: Metadata that would declare a watermark the joined rows do not keep.
_WATERMARK_METADATA = "spark.watermarkDelayMs"

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
}


def arrow_schema(stream: str, schema: T.StructType) -> pa.Schema:
    """The Arrow schema of a stream's rows; refuses types that cannot be stored, naming them."""
    return pa.schema(
        [
            pa.field(field.name, arrow_type(field.dataType, f"{stream}.{field.name}"))
            for field in schema
        ]
    )


def arrow_type(data_type: T.DataType, where: str) -> pa.DataType:
    """Spark's type in Arrow. Time stamps are kept in UTC, as Spark itself keeps them."""
    plain = _PLAIN.get(type(data_type))
    if plain is not None:
        return plain
    if isinstance(data_type, T.StringType):
        return pa.string()
    if isinstance(data_type, T.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, T.ArrayType):
        item = arrow_type(data_type.elementType, f"{where}[]")
        return pa.list_(pa.field("element", item, nullable=data_type.containsNull))
    if isinstance(data_type, T.MapType):
        value = arrow_type(data_type.valueType, f"{where}[value]")
        return pa.map_(
            pa.field("key", arrow_type(data_type.keyType, f"{where}[key]"), nullable=False),
            pa.field("value", value, nullable=data_type.valueContainsNull),
        )
    if isinstance(data_type, T.StructType):
        return pa.struct(
            [
                pa.field(
                    field.name,
                    arrow_type(field.dataType, f"{where}.{field.name}"),
                    nullable=field.nullable,
                )
                for field in data_type
            ]
        )
    raise InvalidArgumentError(
        f"column {where} has type {data_type.simpleString()}, which the join cannot store; "
        "drop it, or cast it to a string, binary, number, date or time stamp first"
    )


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch's leading columns under ``schema``; a column is cast only where its type differs
    (time stamps change their zone's name, not their bytes)."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=False)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def output_fields(schema: T.StructType, names: list[str]) -> list[T.StructField]:
    """A stream's columns in the result: same types and nullability, the names of the rule."""
    return [
        T.StructField(name, field.dataType, field.nullable, _without_watermark(field.metadata))
        for name, field in zip(names, schema, strict=True)
    ]


def _without_watermark(metadata: dict[str, object] | None) -> dict[str, object]:
    return {k: v for k, v in (metadata or {}).items() if k != _WATERMARK_METADATA}
