"""The join of sql_join.py written with DataFrames: ``join`` as ever, then ``to_multiway``.

python examples/dataframe_join.py HOME CHECKPOINT OUT [MEMORY]
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lsmstate.spark import State, configure, to_multiway


def main(home: str, checkpoint: str, out: str, memory: str = "64m") -> StreamingQuery:
    spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()

    def stream(name: str) -> DataFrame:
        path = str(Path(home) / name)
        return spark.readStream.schema(spark.read.parquet(path).schema).parquet(path)

    customers, orders, lines = stream("customers"), stream("orders"), stream("lines")
    chained = (
        customers.join(orders, orders.customer == customers.id)
        .join(lines, lines.order_id == orders.id)
        .where("price > 1")
        .select("name", "day", "price")
    )
    query = (
        to_multiway(chained, strict=True, state=State(memory=memory))
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
