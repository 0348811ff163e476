"""Strings under a collation as keys: Spark's own collation keys, equal bytes for equal strings.

Spark rewrites a join on collated strings to one on these keys, and so do we. They depend on the
version of the collation library, which the checkpoint therefore pins.
"""

from collections.abc import Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.spark_integration.catalyst.catalyst import collation_keys, collation_version

_BINARY = "UTF8_BINARY"


def collations_in(data_type: T.DataType) -> list[str]:
    """The collations of the strings in the type, other than that of plain bytes."""
    if isinstance(data_type, T.StructType):
        found = [name for field in data_type for name in collations_in(field.dataType)]
        return list(dict.fromkeys(found))
    if isinstance(data_type, T.ArrayType):
        return collations_in(data_type.elementType)
    collation = getattr(data_type, "collation", _BINARY)
    return [] if collation == _BINARY else [collation]


def collation_key_type(spark: SparkSession, data_type: T.DataType) -> T.DataType:
    """The type of the collation keys of values of ``data_type``. Needs a session with a JVM."""
    values = spark.range(0).select(F.lit(None).cast(data_type).alias("value"))
    return with_collation_keys(values, ["value"]).schema["value"].dataType


def collation_versions(spark: SparkSession, collations: Collection[str]) -> list[str]:
    """The collations with the version of the library that makes their keys."""
    return [f"{name} {collation_version(spark, name)}" for name in collations]


def with_collation_keys(frame: DataFrame, names: Collection[str]) -> DataFrame:
    """The frame with the values of some columns replaced by their collation keys."""
    return frame.withColumns(collation_keys(frame, names))
