"""Inner joins that forget rows by event time, and the watermark of their result.

With a *result time*, a result carries the latest event time of its rows. That is never late,
because the row that came last was not. Every call ends with a *tick*: a row of nulls with the
latest time that the bucket has seen. The tick moves the watermark that is declared on the result
time, so that Spark's watermark goes on while the join finds nothing. The plan drops ticks above
that.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.local.parts.time_checks import result_columns
from lsmstate.joins.specs.event_time import TimedSpec
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA
from lsmstate.spark_integration.joins.watermarks import result_time_type
from lsmstate.spark_integration.plan.bucket import InputBatch
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan

#: A column of the operator's result, true in ticks, that nobody sees.
TICK: Final = "lsmstate.tick"


def timed_output(spec: TimedSpec, result_time: str | None) -> pa.Schema:
    """The columns of the result as they leave the operator."""
    if result_time is None:
        return spec.output_schema
    return pa.schema(
        [
            *(field.with_nullable(True) for field in spec.output_schema),
            pa.field(result_time, result_time_type(spec.joined, spec.event_time)),
            pa.field(TICK, pa.bool_()),
        ]
    )


def with_time(plan: StatefulPlan, spec: TimedSpec, result_time: str | None) -> StatefulPlan:
    """The plan of a join that forgets rows."""
    return replace(
        plan,
        output=timed_output(spec, result_time),
        watches_time=True,
        result_time=result_time,
    )


class ResultTimes:
    """The result time of rows, and of a tick."""

    def __init__(self, spec: TimedSpec, schema: pa.Schema) -> None:
        names = result_columns(spec.joined)
        timing = spec.event_time
        self._columns = dict(timing.columns)
        self._names = [names[StreamColumn(s, c)] for s, c in timing.columns.items()]
        self._schema = schema
        self._latest_us: int | None = None

    def arrived(self, batch: InputBatch) -> None:
        if batch.input in self._columns:
            times = batch.rows.column(self._columns[batch.input]).view(pa.int64())
            self._latest_us = _greatest(self._latest_us, pc.max(times).as_py())

    def added(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The results with their time."""
        # Spark's time stamps are microseconds, of which Arrow knows the greatest as numbers.
        times = [rows[name].view(pa.int64()) for name in self._names]
        latest = pc.max_element_wise(*times).view(self._schema[-2].type)
        no_ticks = pa.repeat(pa.scalar(False), rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, latest, no_ticks], schema=self._schema)

    def tick(self, watermark_us: int | None) -> pa.RecordBatch:
        """The tick. Its time is not before the watermark, which a bucket without rows must not hold
        back."""
        *fields, time, _ = self._schema
        latest = pa.array([_greatest(self._latest_us, watermark_us)], pa.int64()).view(time.type)
        nulls = [pa.nulls(1, field.type) for field in fields]
        return pa.RecordBatch.from_arrays([*nulls, latest, pa.array([True])], schema=self._schema)


def with_result_time(
    output: T.StructType, streams: Mapping[str, DataFrame], result_time: str | None
) -> T.StructType:
    """The columns of the result with result time and tick. The other columns are null in ticks."""
    if result_time is None:
        return output
    time = next(
        field.dataType
        for frame in streams.values()
        for field in frame.schema
        if WATERMARK_METADATA in (field.metadata or {})
    )
    fields = [T.StructField(f.name, f.dataType, True, f.metadata) for f in output]
    return T.StructType(
        [*fields, T.StructField(result_time, time), T.StructField(TICK, T.BooleanType())]
    )


def with_watermark(rows: DataFrame, result_time: str) -> DataFrame:
    """The result with its watermark declared, and without ticks."""
    declared = rows.withWatermark(result_time, "0 seconds")
    # A condition that could be another in each partition is one that Spark moves nothing through:
    # neither this nor a filter further up may take the ticks away below the watermark.
    is_tick = F.col(quoted(TICK)) & (F.spark_partition_id() >= 0)
    return declared.where(~is_tick).drop(TICK)


def _greatest(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)
