"""Exact deduplication over the full history: of all rows with a key, the first to arrive stays.

    python examples/deduplicate.py EVENTS CHECKPOINT OUT [MEMORY]   # EVENTS: Parquet, a column id

Spark's ``dropDuplicates`` does the same. Here the keys seen so far lie in a store that spills to
disk: a worker's memory stays under the cap however many they are, and no watermark is needed.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate.spark import State, configure, deduplicate


def main(events: str, checkpoint: str, out: str, memory: str = "64m") -> StreamingQuery:
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
    schema = spark.read.parquet(events).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(events)
    query = (
        deduplicate(stream, "id", state=State(memory=memory))
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
