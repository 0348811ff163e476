"""Three streams joined in SQL, over everything that ever arrived, as one operator.

    python examples/sql_join.py HOME CHECKPOINT OUT [MEMORY]

HOME has Parquet files in customers (id, name), orders (id, customer, day), lines (order_id, price).
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate.spark import State, configure, streaming_sql

SQL = """
SELECT c.name, o.day, l.price
FROM customers c JOIN orders o ON o.customer = c.id JOIN lines l ON l.order_id = o.id
WHERE l.price > 1
"""


def main(home: str, checkpoint: str, out: str, memory: str = "64m") -> StreamingQuery:
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
    for name in ("customers", "orders", "lines"):
        path = str(Path(home) / name)
        stream = spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)
        stream.createOrReplaceTempView(name)
    joined = streaming_sql(spark, SQL, strict=True, state=State(memory=memory))
    print(joined.explain_multiway())
    query = (
        joined.writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    return query


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
