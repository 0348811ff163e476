"""Key columns on their way to the workers: cast as Spark's ``=`` does, comparable as bytes.

Invariant: two values are equal under Spark's ``=`` exactly if what travels of them is equal.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import Pair
from lsmstate.spark_integration.catalyst.catalyst import is_classic
from lsmstate.spark_integration.columns.arrow_substitutes import carried_type, carry
from lsmstate.spark_integration.columns.collations import (
    collation_key_type,
    collation_versions,
    collations_in,
    with_collation_keys,
)
from lsmstate.spark_integration.columns.key_types import KeyColumn, common_type, padded_length
from lsmstate.spark_integration.columns.schemas import arrow_type, pinned_type

#: Spark pads no CHAR where the first is true and the second is not.
_NO_PADDING: Final = "spark.sql.legacy.noCharPaddingInPredicate"
_PADDED_WHEN_READ: Final = "spark.sql.readSideCharPadding"


@dataclass(frozen=True)
class Key:
    """One column of the key: a column of each input that has it, and how they are compared."""

    columns: Mapping[str, KeyColumn]
    """By input, in the inputs' order."""
    compared: T.DataType
    """The type Spark's ``=`` casts all of them to."""
    coded: T.DataType
    """The same, with the type of collation keys for strings under a collation."""
    char_length: int
    """CHAR columns that are shorter are padded to this length."""
    pinned: str
    """How the checkpoint names all this."""

    @classmethod
    def of(
        cls, spark: SparkSession, columns: Sequence[KeyColumn], written: Sequence[Pair] | None
    ) -> "Key":
        """InvalidArgumentError if Spark does not compare the columns, or they cannot be compared
        here."""
        where = ", ".join(map(str, columns))
        compared = coded = common_type(spark, columns, written)
        notes = []
        collations = collations_in(compared)
        if collations:
            if not is_classic(spark):
                raise InvalidArgumentError(
                    f"key columns {where}: under Spark Connect strings under a collation cannot "
                    "be keys; use collate(column, 'UTF8_BINARY') instead, which compares bytes"
                )
            coded = collation_key_type(spark, compared)
            notes = collation_versions(spark, collations)
        length = padded_length(columns)
        if length and not _pads_chars(spark):
            length = 0
        if length:
            notes.append(f"char({length})")
        pinned = ", ".join([pinned_type(coded, where), *notes])
        return cls({column.stream: column for column in columns}, compared, coded, length, pinned)

    @cached_property
    def arrow(self) -> pa.DataType:
        """The type of what travels, by which the state orders its rows."""
        return arrow_type(self.coded, ", ".join(map(str, self.columns.values())))

    def is_stored(self, name: str, stored: pa.DataType) -> bool:
        """Whether the column of input ``name``, as it is stored, is the key itself."""
        return bool(stored.equals(self.arrow)) and not self._is_padded(name)

    def cast(self, name: str, values: Column) -> Column:
        """The values of input ``name`` as they are compared."""
        if self._is_padded(name):
            values = F.rpad(values, self.char_length, " ")
        return values.cast(self.compared)

    def _is_padded(self, name: str) -> bool:
        return any(length < self.char_length for length in self.columns[name].char_lengths)


def _pads_chars(spark: SparkSession) -> bool:
    return spark.conf.get(_NO_PADDING) != "true" or spark.conf.get(_PADDED_WHEN_READ) == "true"


def travelling(
    frame: DataFrame, name: str, keys: Sequence[Key], positions: Sequence[int]
) -> DataFrame:
    """The rows of input ``name`` as route takes them, by position: its own columns, followed by
    those of its ``keys`` whose ``positions`` are not among those."""
    schema = frame.schema
    # PySpark asks for each column by its bare name, which fails where that holds a dot or a quote,
    # or occurs twice; and renaming one by one takes a call each.
    names = schema.names
    if not _are_plain(names):
        names = [f"c{i}" for i in range(len(schema))]
        frame = frame.toDF(*names)
    types = {own: field.dataType for own, field in zip(names, schema, strict=True)}
    beside = {f"key {p}": key for p, key in zip(positions, keys, strict=True) if p >= len(names)}
    casts = {}
    for place, key in beside.items():
        source = names[schema.names.index(key.columns[name].column)]
        casts[place] = key.cast(name, F.col(source))
        types[place] = key.coded
    frame = _with(frame, casts)
    collated = [place for place, key in beside.items() if key.coded != key.compared]
    if collated:
        frame = with_collation_keys(frame, collated)
    carried = {place: carry(F.col(place), t) for place, t in types.items() if carried_type(t) != t}
    return _with(frame, carried)


def _are_plain(names: Sequence[str]) -> bool:
    """Whether each name is a word, and Spark tells them apart whatever it makes of case."""
    words = {name.lower() for name in names if re.fullmatch(r"\w+", name, re.ASCII)}
    return len(words) == len(names)


def _with(frame: DataFrame, columns: dict[str, Column]) -> DataFrame:
    return frame.withColumns(columns) if columns else frame
