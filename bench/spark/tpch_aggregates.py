"""Aggregates of TPC-H's joins, kept up to date, beside Spark's own joins: Q3, Q5, Q9 and Q10.

    python -m bench.spark.tpch_aggregates --scale 1
    python -m bench.spark.tpch_aggregates --scale 0.1 Q3 Q10

All tables are streams of 10 micro-batches. Ours is ``streaming_sql`` in update mode. Spark's own is
a chain of stream-stream joins in the order below, on RocksDB, whose micro-batches ``foreachBatch``
aggregates; Spark has no update mode above joins of streams. Filters stand below the joins on both
sides, and no join reads a column that the query does not. The groups at the end must be DuckDB's.
Each run is a process of its own; CPU is that of the JVM and the Python workers after start-up.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from bench.common.child_process import ended_in_time, spark_environment
from bench.spark.deduplication import TreeMeter
from bench.spark.kept_groups import KeptGroups
from bench.spark.spark_joins import CpuAtProgress, session
from lsmstate.spark import State, streaming_sql
from lsmstate.spark_integration.catalyst.catalyst import jvm_of
from support.benchmark_tables import tpch_streams
from support.spark_streams import FileStream

BATCHES = 10
#: What the queries read of each table.
COLUMNS = {
    "region": "r_regionkey, r_name",
    "nation": "n_nationkey, n_name, n_regionkey",
    "supplier": "s_suppkey, s_nationkey",
    "part": "p_partkey, p_name",
    "partsupp": "ps_partkey, ps_suppkey, ps_supplycost",
    "customer": "c_custkey, c_nationkey, c_mktsegment, c_name, c_acctbal, c_address, c_phone, "
    "c_comment",
    "orders": "o_orderkey, o_custkey, o_orderdate, o_shippriority",
    "lineitem": "l_orderkey, l_partkey, l_suppkey, l_quantity, l_extendedprice, l_discount, "
    "l_returnflag, l_shipdate",
}
_VOLUME = "l_extendedprice * (1 - l_discount)"


@dataclass(frozen=True)
class Query:
    """Sums of the column ``amount`` of some rows."""

    groups: str
    rows: str
    """The joins, in the order with the fewest intermediate rows."""

    @property
    def sql(self) -> str:
        return f"SELECT {self.groups}, sum(amount) AS total FROM ({self.rows}) GROUP BY ALL"

    def summed(self, rows: Any) -> Any:
        from pyspark.sql import functions as F

        return rows.groupBy(*self.groups.split(", ")).agg(F.sum("amount").alias("total"))


QUERIES = {
    "Q3": Query(
        "l_orderkey, o_orderdate, o_shippriority",
        f"""
SELECT l_orderkey, o_orderdate, o_shippriority, {_VOLUME} AS amount
FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15'
  AND l_shipdate > DATE '1995-03-15'""",
    ),
    "Q5": Query(
        "n_name",
        f"""
SELECT n_name, {_VOLUME} AS amount
FROM region JOIN nation ON n_regionkey = r_regionkey JOIN customer ON c_nationkey = n_nationkey
  JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
  JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
WHERE r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'""",
    ),
    "Q9": Query(
        "nation, o_year",
        f"""
SELECT n_name AS nation, year(o_orderdate) AS o_year,
  {_VOLUME} - ps_supplycost * l_quantity AS amount
FROM part JOIN partsupp ON p_partkey = ps_partkey
  JOIN lineitem ON ps_suppkey = l_suppkey AND ps_partkey = l_partkey
  JOIN supplier ON s_suppkey = l_suppkey JOIN nation ON s_nationkey = n_nationkey
  JOIN orders ON o_orderkey = l_orderkey
WHERE p_name LIKE '%green%'""",
    ),
    "Q10": Query(
        "c_custkey, c_name, c_acctbal, n_name, c_address, c_phone, c_comment",
        f"""
SELECT c_custkey, c_name, c_acctbal, n_name, c_address, c_phone, c_comment, {_VOLUME} AS amount
FROM orders JOIN customer ON c_custkey = o_custkey JOIN nation ON c_nationkey = n_nationkey
  JOIN lineitem ON l_orderkey = o_orderkey
WHERE o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01'
  AND l_returnflag = 'R'""",
    ),
}
SIDES = ("ours", "spark")
FIGURES = {
    "query_cpu_seconds": "CPU s after start-up",
    "first_batch_cpu": "of it the first micro-batch",
    "wall_seconds": "wall s",
    "groups": "groups",
}


def run_side(name: str, side: str, streams: Mapping[str, FileStream], home: Path) -> dict[str, Any]:
    """One query over all files, in this process."""
    query = QUERIES[name]
    meter = TreeMeter()
    meter.start()
    spark = session(home, {}, is_ours=side == "ours")
    for table, stream in streams.items():
        stream.read(spark).createOrReplaceTempView(table)
    watch = CpuAtProgress(meter, jvm_of(spark))
    spark.streams.addListener(watch)
    began, started = meter.cpu_seconds(), time.perf_counter()
    note = ""
    keys = query.groups.count(",") + 1
    if side == "ours":
        converted = streaming_sql(spark, query.sql, state=State(memory="64m"))
        note = converted.explain_multiway()
        kept, writer = KeptGroups(keys), converted.writeStream
    else:
        kept, writer = KeptGroups(keys, query.summed), spark.sql(query.rows).writeStream
    writer = writer.outputMode(kept.output_mode).foreachBatch(kept.keep)
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    wall, cpu = time.perf_counter() - started, meter.cpu_seconds()
    meter.end()
    spark.stop()
    kept.check(_by_duckdb(query, streams))
    return {
        "query_cpu_seconds": cpu - began,
        "first_batch_cpu": watch.seconds[0] - began,
        "wall_seconds": wall,
        "groups": len(kept.found),
        "note": note,
    }


def _by_duckdb(query: Query, streams: Mapping[str, FileStream]) -> list[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect() as db:
        for table, stream in streams.items():
            db.execute(f"CREATE VIEW {table} AS FROM {stream.sql}")
        return db.execute(query.sql).fetchall()


def run_apart(name: str, side: str, tables: Path, most: float) -> dict[str, Any] | None:
    """The same in a new process; None where it has not ended after ``most`` seconds."""
    home = Path(tempfile.mkdtemp(prefix=f"tpch-{name}-{side}-"))
    module = ["-m", "bench.spark.tpch_aggregates"]
    command = [sys.executable, *module, name, "--side", side, "--tables", str(tables)]
    try:
        ended = ended_in_time([*command, "--home", str(home)], most, spark_environment())
        return None if ended is None else json.loads(ended[0].splitlines()[-1])
    finally:
        shutil.rmtree(home, ignore_errors=True)  # one that was stopped may still be writing


def _streams(tables: Path) -> dict[str, FileStream]:
    """Those that ``main`` has made."""
    schemas = json.loads((tables / "schemas.json").read_text())
    return {name: FileStream(tables / name, schema) for name, schema in schemas.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queries", nargs="*", choices=[[], *QUERIES], default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--most", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--tables", type=Path, help="where the tables are, or are made and kept")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        found = run_side(asked.queries[0], asked.side, _streams(asked.tables), asked.home)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="tpch-tables-") as temporary:
        tables = asked.tables or Path(temporary)
        if not (tables / "schemas.json").exists():
            made = tpch_streams(tables, asked.scale, BATCHES, COLUMNS)
            schemas = {name: stream.schema for name, stream in made.items()}
            (tables / "schemas.json").write_text(json.dumps(schemas))
        print(f"| query | side | {' | '.join(FIGURES.values())} | ratio |")
        print(f"|{'---|' * (len(FIGURES) + 3)}", flush=True)
        for name in asked.queries or QUERIES:
            _show(name, asked.sides.split(","), tables, asked.most)


def _show(name: str, sides: list[str], tables: Path, most: float) -> None:
    ours = 0.0
    for side in sides:
        found = run_apart(name, side, tables, most)
        if found is None:
            print(f"| {name} | {side} | not ended in {most:g} s |", flush=True)
            continue
        print(found["note"], file=sys.stderr, flush=True)
        cpu = found["query_cpu_seconds"]
        ours = cpu if side == "ours" else ours
        ratio = f"{cpu / ours:.2f}" if ours else "-"
        cells = " | ".join(f"{found[figure]:,.1f}" for figure in FIGURES)
        print(f"| {name} | {side} | {cells} | {ratio} |", flush=True)


if __name__ == "__main__":
    main()
