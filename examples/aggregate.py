"""A running aggregation by key that keeps more groups than memory holds.

    python examples/aggregate.py ORDERS CHECKPOINT OUT [MEMORY]

ORDERS holds Parquet files with the columns customer (BIGINT) and amount (DECIMAL(9,2)).
Per customer: number, sum, least and greatest of the amounts, as Spark's ``groupBy`` in update mode
gives them: a micro-batch gives one row for each customer that it changes.
"""

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate import MultimapStore
from lsmstate.spark import Bucket, InputBatch, State, configure, stateful_batches

TOTALS = "orders BIGINT, total DECIMAL(18,2), least DECIMAL(9,2), greatest DECIMAL(9,2)"
_MERGED = [("orders", "sum"), ("total", "sum"), ("least", "min"), ("greatest", "max")]


def totals(orders: DataFrame, memory: int | str = "64m") -> DataFrame:
    """The new totals of every customer that a micro-batch names."""
    return stateful_batches(
        orders,
        key="customer",
        function=updated_totals,
        streams={"totals": TOTALS, "changed": "batch BIGINT"},
        schema=f"customer BIGINT, {TOTALS}",
        output_mode="update",
        state=State(memory=memory),
    )


def updated_totals(
    bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
) -> Iterator[pa.RecordBatch]:
    """Merge each batch into the totals in the store, then yield those that have changed."""
    for batch in batches:
        groups = batch.groups()
        keys = batch.keys.take(pa.array(groups.first))
        store.put("totals", _merged(groups.numbers, batch.rows, store, keys), keys)
        when = pa.array(np.full(keys.num_rows, bucket.batch_id))
        store.put("changed", pa.record_batch({"batch": when}), keys)
    # In small pieces: get_many holds all the rows it finds.
    for changed in store.iterate("changed", max_bytes=64 << 10):
        found = store.get_many("totals", changed.keys)
        yield pa.record_batch([*changed.keys.columns, *found.rows.columns], schema=bucket.schema)
    store.delete_range("changed")


def _merged(
    numbers: np.ndarray, rows: pa.RecordBatch, store: MultimapStore, keys: pa.RecordBatch
) -> pa.RecordBatch:
    """New totals, one row per key, from the rows of each group and what the store has for
    its key."""
    schema = store.streams["totals"].rows
    amount = rows["amount"]
    arrived = [pa.array(numbers), pa.array(np.ones(len(numbers), np.int64)), amount, amount, amount]
    stored = store.get_many("totals", keys)
    before = [pa.array(stored.positions), *stored.rows.columns]
    names = ["group", *schema.names]
    types = pa.schema([("group", pa.int64()), *schema])
    parts = [pa.table(columns, names=names).cast(types) for columns in (arrived, before)]
    merged = pa.concat_tables(parts).group_by("group", use_threads=False).aggregate(_MERGED)
    in_key_order = merged.sort_by("group").drop_columns("group").rename_columns(schema.names)
    return in_key_order.cast(schema).combine_chunks().to_batches()[0]


def main(orders: str, checkpoint: str, out: str, memory: str = "16m") -> StreamingQuery:
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
    schema = spark.read.parquet(orders).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(orders)

    def keep(changed: DataFrame, number: int) -> None:
        """What a MERGE into a table would be; a repeated micro-batch writes over itself."""
        changed.write.mode("overwrite").parquet(f"{out}/batch={number}")

    query = (
        totals(stream, memory=memory)
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
