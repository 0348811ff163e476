"""TPC-H's eleven queries of the paper's Table 3 as SQL over streams, checked against DuckDB.

    python bench/tpch_sql.py [SCALE] [QUERY ...]        # scale 0.01, all queries

Prints a row of the table per query: the groups of joins found by their inputs, those of the one
that is merged, its key classes, shares and copies per row (estimated from the sizes of the files),
how it runs, and whether the answers after a middle and after the last micro-batch are DuckDB's.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from spark_streams import FileStream
from tpch_queries import STAGED, STREAMED
from tpch_tables import MICRO_BATCHES, arrived, tpch_streams

from joins.plan.tsc import two_step_convert
from lsmstate.spark import streaming_sql
from spark_integration.local_session import start_session

BUCKETS = 8
Rows = list[tuple[Any, ...]]


def main(scale: float, names: list[str]) -> None:
    print("| query | groups | merged | key classes | shares | copies per row | mode | s | equal |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="tpch-") as directory:
        home = Path(directory)
        spark = start_session(home, 2)
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        streams = tpch_streams(home, scale)
        for name, stream in streams.items():
            stream.read(spark).createOrReplaceTempView(name)
        for name in names:
            print(row(spark, streams, name, home / name), flush=True)
        spark.stop()


def row(spark: SparkSession, streams: dict[str, FileStream], name: str, home: Path) -> str:
    sql = STREAMED.get(name) or STAGED[name]
    began = time.monotonic()
    query = streaming_sql(spark, sql, memory="16m", buckets=BUCKETS)
    answers: list[Rows] = []

    def keep(df: Any, _number: int) -> None:
        answers.append([tuple(found) for found in df.collect()])

    if name in STREAMED:
        writer = query.writeStream.outputMode("complete").foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(home))
        started = writer.trigger(availableNow=True).start()
        trees = [query.converted.conversion.before]
        explanation = query.explain_multiway()
    else:
        staged = query.staged(str(home))
        started = staged.start(keep, trigger={"availableNow": True})
        trees = [part.read.tree for part in staged._fragments.part.all()]
        explanation = staged.explain_multiway()
    started.awaitTermination()
    seconds = time.monotonic() - began
    equal = all(
        same(answers[number], expected(streams, sql, number + 1))
        for number in (MICRO_BATCHES // 2, MICRO_BATCHES - 1)
    )
    groups = sorted(len(m.inputs) for t in trees for m in two_step_convert(t).multi_joins)[::-1]
    cells = [
        name,
        " + ".join(map(str, groups)) or "none",
        str(groups[0]) if groups else "-",
        *operator(explanation),
        "streamed, complete" if name in STREAMED else "staged",
        f"{seconds:.0f}",
        f"yes ({len(answers[-1])} rows)" if equal and answers[-1] else "NO",
    ]
    return f"| {' | '.join(cells)} |"


def operator(explanation: str) -> tuple[str, str, str]:
    """Key classes, shares and estimated copies as ``explain_join`` writes them."""
    found = {"keys": "-", "shares": "-", "estimated": "-"}
    for line in explanation.splitlines():
        name, _, text = line.strip().partition(": ")
        name = name.split(" (")[0]
        if name in found and found[name] == "-":
            found[name] = text
    copies = found["estimated"].split(" copies")[0]
    return found["keys"], found["shares"].split("; ")[0], copies


def expected(streams: dict[str, FileStream], sql: str, micro_batches: int) -> Rows:
    with duckdb.connect() as db:
        for name, stream in streams.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {arrived(stream, micro_batches)}")
        return db.execute(sql).fetchall()


def same(found: Rows, wanted: Rows) -> bool:
    """In order; numbers to six digits, since Spark divides decimals and DuckDB doubles."""
    return len(found) == len(wanted) and all(
        is_close(value, other)
        for row, exact in zip(found, wanted, strict=True)
        for value, other in zip(row, exact, strict=True)
    )


def is_close(value: Any, exact: Any) -> bool:
    if isinstance(exact, float) or hasattr(exact, "as_tuple"):
        return abs(float(value) - float(exact)) <= 1e-6 * abs(float(exact))
    return bool(value == exact)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(float(arguments[0]) if arguments else 0.01, arguments[1:] or [*STREAMED, *STAGED])
