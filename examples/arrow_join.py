"""The join of sql_join.py in plain Python: Arrow batches in, Arrow batches out, no Spark.

python examples/arrow_join.py HOME OUT.parquet [MEMORY]
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lsmstate.join import MultiwayJoin, State

ON = "customers.id = orders.customer AND orders.id = lines.order_id"


def main(home: str, out: str, memory: str = "64m") -> int:
    """Join the files and return how many rows were written."""
    files = {
        n: sorted((Path(home) / n).glob("*.parquet")) for n in ("customers", "orders", "lines")
    }
    schemas = {name: pq.read_schema(paths[0]) for name, paths in files.items()}
    rows = 0
    result = pa.schema([(n, join_type(schemas, n)) for n in ("name", "day", "price")])
    with (
        MultiwayJoin(schemas, ON, state=State(memory=memory)) as join,
        pq.ParquetWriter(out, result) as writer,
    ):
        for name, paths in files.items():
            for batch in (b for path in paths for b in pq.ParquetFile(path).iter_batches()):
                for found in join.process(name, batch):
                    kept = found.select(result.names).filter(pc.field("price") > 1)
                    writer.write_batch(kept)
                    rows += kept.num_rows
    return rows


def join_type(schemas: dict[str, pa.Schema], column: str) -> pa.DataType:
    """The type of a column that only one stream has; the column keeps its name in the result."""
    (schema,) = (s for s in schemas.values() if column in s.names)
    return schema.field(column).type


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    print(main(*sys.argv[1:]), "rows")
