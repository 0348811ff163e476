"""Exact deduplication over the full history: of all rows with a key, the first to arrive stays.

    python examples/deduplicate.py EVENTS CHECKPOINT OUT [MEMORY]   # EVENTS: Parquet, a column id

Spark's ``dropDuplicates`` does the same. Here the keys seen so far lie in a store that spills to
disk: a worker's memory stays under the cap however many they are, and no watermark is needed.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate import MultimapStore
from lsmstate.spark import Bucket, InputBatch, State, configure, stateful_batches


def deduplicate(events: DataFrame, key: str | list[str], memory: int | str = "64m") -> DataFrame:
    """The first row of each key. Of several in one micro-batch, the order of the source decides."""
    return stateful_batches(
        events,
        key=key,
        function=first_rows,
        streams={"seen": "batch BIGINT"},
        schema=events.schema,
        state=State(memory=memory),
    )


def first_rows(
    bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
) -> Iterator[pa.RecordBatch]:
    """Yield the first row of each key that the store has not seen."""
    for batch in batches:
        first = np.sort(batch.groups().first)
        is_new = ~store.exists("seen", batch.keys.take(pa.array(first)))
        new = pa.array(first[is_new])
        when = pa.array(np.full(len(new), bucket.batch_id))
        store.append("seen", pa.record_batch({"batch": when}), batch.keys.take(new))
        yield batch.rows.take(new)


def main(events: str, checkpoint: str, out: str, memory: str = "64m") -> StreamingQuery:
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
    schema = spark.read.parquet(events).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(events)
    query = (
        deduplicate(stream, "id", memory=memory)
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    return query


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
