"""Inputs of a stateful operator: streaming DataFrames, and the keys by which they are routed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import Pair
from lsmstate.spark_integration.columns.key_columns import Key
from lsmstate.spark_integration.columns.key_types import KeyColumn
from lsmstate.spark_integration.columns.schemas import arrow_schema, pinned_type
from lsmstate.spark_integration.plan.stateful_plan import InputPlan
from lsmstate.spark_integration.session.worker_python import check_worker_python


class UnfitInputError(InvalidArgumentError):
    """A column cannot be stored, or Spark does not compare the keys."""


@dataclass(frozen=True)
class Inputs:
    """Inputs of one operator in their order, with their common keys."""

    frames: Mapping[str, DataFrame]
    keys: tuple[Key, ...]
    key_names: tuple[str, ...]
    plans: tuple[InputPlan, ...]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        frames: Mapping[str, DataFrame],
        columns: Mapping[str, Sequence[str | None]],
        key_names: Sequence[str] | None = None,
        written: Sequence[Pair] | None = None,
    ) -> "Inputs":
        """Resolve the keys of the inputs.

        Args:
            spark: The session.
            frames: The inputs.
            columns: Key columns of each input. The n-th ones are compared; None: the input has no
                such key. At least one input has it.
            key_names: Names of the keys in the state. Default: k0, k1, and so on.
            written: The equalities, if the condition has them. Default: each column of a key equals
                each.

        Raises:
            InvalidArgumentError: Spark does not compare the keys, or a column cannot be stored.
        """
        schemas = {name: frame.schema for name, frame in frames.items()}
        rows = {name: arrow_schema(name, schema) for name, schema in schemas.items()}
        count = len(next(iter(columns.values())))
        keys = tuple(
            Key.of(
                spark,
                [
                    KeyColumn.of(name, schemas[name][column])
                    for name in frames
                    if (column := columns[name][k]) is not None
                ],
                written,
            )
            for k in range(count)
        )
        names = tuple(key_names or (f"k{k}" for k in range(count)))
        coerced = _key_schema(names, keys)
        plans = tuple(
            _input_plan(name, schemas[name], rows[name], keys, coerced) for name in frames
        )
        return cls(frames, keys, names, plans)

    @property
    def key_schema(self) -> pa.Schema:
        """The types in which keys are compared, under their names in the state."""
        return _key_schema(self.key_names, self.keys)

    def keys_of(self, name: str) -> tuple[Key, ...]:
        """The keys that an input has."""
        return tuple(key for key in self.keys if name in key.columns)

    @property
    def key_types(self) -> list[str]:
        """The types of the keys as the checkpoint pins them."""
        return [key.pinned for key in self.keys]

    @property
    def time_zone(self) -> str | None:
        """Time zone of the session, if Spark casts a key to a time stamp by it; else None."""
        casts = [field.type for plan in self.plans for field in plan.cast_keys]
        if not any(map(_holds_time, casts)):
            return None
        zone = next(iter(self.frames.values())).sparkSession.conf.get("spark.sql.session.timeZone")
        return str(zone)

    @property
    def has_several_keys(self) -> bool:
        """Whether an input lacks a key that others have, or has a column in several."""
        columns = [column.place for key in self.keys for column in key.columns.values()]
        is_common = all(len(key.columns) == len(self.plans) for key in self.keys)
        return not is_common or len(set(columns)) < len(columns)

    @property
    def columns(self) -> dict[str, list[str]]:
        """All columns of each input as the checkpoint pins them."""
        return {plan.name: list(plan.pinned) for plan in self.plans}


def session_of(frames: Mapping[str, DataFrame], word: str, remedy: str) -> SparkSession:
    """The session of the inputs. InvalidArgumentError unless all are streaming DataFrames with
    names, and the session's workers can run lsmstate. ``word`` is what the operator calls an input;
    ``remedy`` ends the message about a static DataFrame."""
    for name, frame in frames.items():
        if not isinstance(name, str) or not hasattr(frame, "isStreaming"):
            raise InvalidArgumentError(
                f"{word}s[{name!r}] is {type(frame).__name__}; give streaming DataFrames under "
                "names that are strings"
            )
        if not frame.isStreaming:
            raise InvalidArgumentError(
                f"{word} {name!r} is a static DataFrame; {remedy.format(name=name)}"
            )
    spark = next(iter(frames.values())).sparkSession
    check_worker_python(spark)
    return spark


def _input_plan(
    name: str,
    schema: T.StructType,
    rows: pa.Schema,
    keys: Sequence[Key],
    coerced: pa.Schema,
) -> InputPlan:
    own = []
    positions: list[int] = []
    casts: list[pa.Field] = []
    for key, field in zip(keys, coerced, strict=True):
        if name not in key.columns:
            continue
        own.append(field)
        stored = rows.get_field_index(key.columns[name].column)
        if key.is_stored(name, rows.field(stored).type):
            positions.append(stored)
        else:
            positions.append(len(rows) + len(casts))
            casts.append(field)
    pinned = [f"{f.name} {pinned_type(f.dataType, f'{name}.{f.name}')}" for f in schema]
    return InputPlan(name, rows, pa.schema(own), tuple(positions), pa.schema(casts), tuple(pinned))


def _key_schema(names: Sequence[str], keys: Sequence[Key]) -> pa.Schema:
    return pa.schema([(name, key.arrow) for name, key in zip(names, keys, strict=True)])


def _holds_time(kind: pa.DataType) -> bool:
    """Whether the type is or contains a time stamp."""
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(pa.types.is_timestamp(kind)) or any(map(_holds_time, parts))
