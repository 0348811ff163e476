"""Columns of results that leave the operator, where the query above reads only some of them.

The state and the settings of the join are those of the same join without it. All columns of the
inputs are stored, since a later start may ask for others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.schema.arrow_sizes import sizes_of
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import stateful_operator

_Found = TypeVar("_Found", pa.RecordBatch, Picked)


@dataclass(frozen=True)
class ShownColumns:
    """Places of columns in a result, by the stream that they are of; a value."""

    parts: tuple[tuple[int, ...], ...]
    """Of each stream, places among its columns: at least one."""
    widths: tuple[int, ...]
    """How many columns each stream has."""

    @classmethod
    def of(cls, streams: Mapping[str, pa.Schema], wanted: Collection[Column]) -> "ShownColumns":
        """``streams``: whose columns, side by side, are those of a result."""
        parts = []
        for name, schema in streams.items():
            own = [at for at, each in enumerate(schema.names) if Column(name, each) in wanted]
            parts.append(tuple(own or [_narrowest(schema)]))
        return cls(tuple(parts), tuple(len(schema) for schema in streams.values()))

    @property
    def places(self) -> list[int]:
        """Those of the result."""
        starts = np.cumsum([0, *self.widths]).tolist()
        return [start + at for start, part in zip(starts, self.parts, strict=False) for at in part]

    def plan(self, plan: StatefulPlan) -> StatefulPlan:
        """The plan of the same join without the other columns."""
        output = pa.schema([plan.output.field(at) for at in self.places])
        some = zip(plan.parts, self.parts, strict=True) if plan.parts else ()
        parts = tuple(pa.schema([schema.field(at) for at in own]) for schema, own in some)
        return replace(plan, output=output, parts=parts)

    def output(self, output: T.StructType) -> T.StructType:
        """The columns as Spark has them."""
        return T.StructType([output.fields[at] for at in self.places])

    def __call__(self, found: _Found) -> _Found:
        """Results without the other columns."""
        if isinstance(found, pa.RecordBatch):
            return found.select(self.places)  # type: ignore[no-any-return]
        batches = [
            rows.select(list(own)) for rows, own in zip(found.batches, self.parts, strict=True)
        ]
        sizes = [
            sizes_of(rows.schema)(rows)[places]
            for rows, places in zip(batches, found.places, strict=True)
        ]
        return Picked(batches, found.places, np.add.reduce(sizes))


def shown_columns(
    wanted: Collection[Column] | None,
    streams: Mapping[str, pa.Schema],
    conditions: Sequence[str],
) -> ShownColumns | None:
    """The columns that leave an operator.

    Args:
        wanted: Those that the query above reads; None: that is not known.
        streams: Whose columns, side by side, are those of a result.
        conditions: By which Spark judges results.

    Returns:
        None for all columns, also where Spark judges results.
    """
    return None if wanted is None or conditions else ShownColumns.of(streams, wanted)


def narrow_operator(
    plan: StatefulPlan,
    inputs: Inputs,
    function: BucketFunction,
    output: T.StructType,
    shown: ShownColumns | None,
) -> DataFrame:
    """``stateful_operator`` of a function that was told which columns are shown."""
    if shown is not None:
        plan, output = shown.plan(plan), shown.output(output)
    return stateful_operator(plan, inputs, function, output)


def _narrowest(schema: pa.Schema) -> int:
    """The column of the fewest bytes."""
    sizes = [sizes_of(pa.schema([field]))(_nothing(field)).item() for field in schema]
    return int(np.argmin(sizes))


def _nothing(field: pa.Field) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type)], names=[field.name])
