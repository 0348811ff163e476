"""Types that Spark has and Arrow lacks travel as other types.

Spark itself casts them before route and back after unpack, also inside structs, arrays and maps.
Invariant: the value that comes back is the one that went.
"""

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import types as T


def carried_type(data_type: T.DataType) -> T.DataType:
    """The type a value travels as; ``data_type`` itself if Arrow carries it."""
    return _rebuilt(data_type, _carried_leaf)


def carry(column: Column, data_type: T.DataType) -> Column:
    """The column, which has ``data_type``, as its ``carried_type``."""
    return column.cast(_in_months(data_type)).cast(carried_type(data_type))


def restored_type(data_type: T.DataType) -> T.DataType:
    """The type ``restore`` gives: nested values that had to be cast may all be null, as Spark
    holds whatever stands above a stateful operator for nullable and refuses to cast it to less."""
    return data_type if carried_type(data_type) == data_type else nullable_parts(data_type)


def restore(column: Column, data_type: T.DataType) -> Column:
    """The column, which has the ``carried_type`` of ``data_type``, as its ``restored_type``."""
    return column.cast(nullable_parts(_in_months(data_type))).cast(restored_type(data_type))


def nullable_parts(data_type: T.DataType) -> T.DataType:
    """The type with every nested value nullable."""
    return _rebuilt(data_type, lambda leaf: leaf, nullable=True)


def _carried_leaf(leaf: T.DataType) -> T.DataType:
    if isinstance(leaf, T.YearMonthIntervalType):
        return T.IntegerType()
    return T.StringType() if isinstance(leaf, T.CharType | T.VarcharType) else leaf


def _in_months(data_type: T.DataType) -> T.DataType:
    """The type between the two: Spark casts other year-month intervals to numbers of years."""

    def in_months(leaf: T.DataType) -> T.DataType:
        if isinstance(leaf, T.YearMonthIntervalType):
            return T.YearMonthIntervalType(leaf.MONTH, leaf.MONTH)
        return leaf

    return _rebuilt(data_type, in_months)


def _rebuilt(
    data_type: T.DataType, new_leaf: Callable[[T.DataType], T.DataType], nullable: bool = False
) -> T.DataType:
    """The type with each part that has no parts of its own replaced."""
    if isinstance(data_type, T.StructType):
        fields = []
        for f in data_type:
            part = _rebuilt(f.dataType, new_leaf, nullable)
            fields.append(T.StructField(f.name, part, f.nullable or nullable, f.metadata))
        return T.StructType(fields)
    if isinstance(data_type, T.ArrayType):
        element = _rebuilt(data_type.elementType, new_leaf, nullable)
        return T.ArrayType(element, data_type.containsNull or nullable)
    if isinstance(data_type, T.MapType):
        key = _rebuilt(data_type.keyType, new_leaf, nullable)
        value = _rebuilt(data_type.valueType, new_leaf, nullable)
        return T.MapType(key, value, data_type.valueContainsNull or nullable)
    return new_leaf(data_type)
