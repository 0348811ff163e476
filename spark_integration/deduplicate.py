"""deduplicate: the first row of each key of a streaming DataFrame."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.deduplication import (
    DUPLICATES,
    NO_WINDOW,
    SEEN,
    STREAM,
    checked_keys,
    first_rows,
    seen_stream,
    within_us,
)
from lsmstate.joins.local.parts.time_checks import LateRows
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.options import GROUPS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.columns.schemas import arrow_schema, output_fields
from lsmstate.spark_integration.joins.watermarks import watermark_columns
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import KEEP, StatefulPlan
from lsmstate.spark_integration.stateful_batches import pinned_function
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator
from lsmstate.store import MultimapStore

_OPERATOR: Final = "deduplicate"


@names_checked(GROUPS)
def deduplicate(
    df: DataFrame,
    keys: Sequence[str] | str,
    *,
    time: Time = TIME,
    state: State = STATE,
) -> DataFrame:
    """Let the first row of each key through, over the full history or within a length of time.

    Spark's ``dropDuplicates`` without a watermark keeps all keys in memory, and with one it forgets
    them by the watermark alone. Here keys lie in a store that spills to disk. Keys compare as
    Spark's ``=`` does, and a null equals a null. Of several rows of a key in one micro-batch the
    first one in the order of the source counts.

    Args:
        df: A streaming DataFrame.
        keys: Columns whose values are equal in duplicates: one name, or a list. Fixed by the first
            start.
        time: With ``Time(within="1 day")`` a key is forgotten when the watermark is a day past the
            event time of its first row, and late rows are left out and counted. ``df`` then needs a
            watermark. Fixed by the first start.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``.

    Returns:
        The streaming DataFrame of the rows that are new. It may appear once in a query.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Cost:
        One lookup for each distinct key of a micro-batch, and a stored key for each new one.

    Example:
        ```python
        first = deduplicate(events, ["user", "event_id"], state=State(memory="64m"))
        query = first.writeStream.format("parquet").option("checkpointLocation", "c").start("out")
        ```
    """
    remedy = "is not an option of deduplicate on Spark; leave it out"
    refuse_other_fields(time, ("within",), remedy, NO_WINDOW)
    spark = session_of({STREAM: df}, "stream", "use its own dropDuplicates: df.dropDuplicates(...)")
    columns = checked_keys(keys, df.columns)
    checked = OperatorOptions.of(spark, state)
    inputs = Inputs.of(spark, {STREAM: df}, {STREAM: columns}, key_names=columns)
    column, kept_us = _event_time(df, time), within_us(time.within)
    rows = inputs.plans[0].rows
    at = None if column is None else rows.field(column)
    seen = seen_stream(inputs.key_schema, at, kept_us)
    settings = pinned_function(inputs, [seen], {STREAM: columns}, checked, KEEP)
    output = T.StructType(output_fields(df.schema, df.columns))
    kept = "for ever" if time.within is None else f"{time.within} past the first row of each"
    plan = StatefulPlan(
        operator=_OPERATOR,
        inputs=inputs.plans,
        state=(seen,),
        output=arrow_schema(STREAM, output),
        settings={**settings, "keys kept": None if kept_us is None else kept_us},
        keeps_null_keys=True,
        routing=HashRouting(keeps_null_keys=True),
        output_mode="append",
        options=checked.store,
        backend=checked.backend,
        buckets=checked.buckets,
        default_buckets=default_buckets(spark),
        state_dir=checked.state_dir,
        explanation=(
            f"the first row of each {', '.join(columns)}\neach row goes to the bucket of its key\n"
            f"keys are kept {kept}"
        ),
        storage=checked.storage,
        storage_key=checked.storage.keep(),
        counters=(DUPLICATES,),
        watches_time=column is not None,
    )
    return stateful_operator(plan, inputs, _function(rows, column), output)


def _function(rows: pa.Schema, column: str | None) -> BucketFunction:
    """What is called for each bucket and micro-batch."""

    def first(
        bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        late = None if column is None else LateRows(STREAM, column, rows)
        watermark_us = bucket.watermark_us
        counts = {DUPLICATES: 0, LATE_ROWS: 0}
        if late is not None and watermark_us is not None:
            store.advance(SEEN, late.watermark(watermark_us))
        for batch in batches:
            found, keys = batch.rows, batch.keys
            if late is not None and watermark_us is not None:
                in_time = pa.array(~late.late(found, watermark_us))
                counts[LATE_ROWS] += found.num_rows - in_time.true_count
                found, keys = found.filter(in_time), keys.filter(in_time)
            new = first_rows(store, found, keys, keys, column)
            counts[DUPLICATES] += found.num_rows - len(new)
            yield found.take(pa.array(new))
        bucket.tally.counts.update(counts)

    return first


def _event_time(df: DataFrame, time: Time) -> str | None:
    if time.within is None:
        return None
    found = watermark_columns({STREAM: df})
    if not found:
        raise InvalidArgumentError(
            f"within={time.within!r}: the stream has no watermark, so its rows have no event time; "
            'add df.withWatermark("column", "delay")'
        )
    return found[STREAM]
