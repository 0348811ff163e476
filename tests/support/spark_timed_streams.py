"""Streams of rows with times for joins on Spark, and the results of their queries."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from support.spark_streams import FileStream, collected

START = datetime(2026, 3, 28, tzinfo=UTC)  # clocks in Berlin go forward the night after
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
ON = "a.k = b.k AND b.at BETWEEN a.at - INTERVAL 30 MINUTES AND a.at + INTERVAL 1 HOUR"


def table(name: str, rows: list[tuple[int | None, float | None, int]]) -> pa.Table:
    """(key, hours, number) of each row."""
    keys, hours, numbers = zip(*rows, strict=True)
    times = [None if h is None else START + timedelta(hours=h) for h in hours]
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            f"n{name}": pa.array(numbers, pa.int64()),
        }
    )


def stream(home: Path, name: str, *files: list[tuple[int | None, float | None, int]]) -> FileStream:
    found = FileStream(home / name, f"k BIGINT, at TIMESTAMP, n{name} BIGINT")
    return found.add(*(table(name, rows) for rows in files))


def hourly(home: Path, name: str, first: int, count: int, seed: int) -> FileStream:
    """A file an hour, of rows in that hour; a few keys and times are null."""
    rng = random.Random(seed)
    files = []
    for hour in range(first, first + count):
        rows = [(rng.randrange(12), hour + rng.random(), hour * 100 + n) for n in range(30)]
        files.append([*rows, (None, hour + 0.5, -1), (1, None, -2)])
    return stream(home, name, *files)


def read(spark: Any, source: FileStream, delay: str = "0 seconds") -> Any:
    return source.read(spark).withWatermark("at", delay)


def by_duckdb(sql: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        found = Counter(db.execute(sql).fetchall())
    assert found, "the test joins nothing"
    return found


def run(result: Any, home: Path) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, collected(result, home)))


def run_query(result: Any, home: Path) -> tuple[Counter[tuple[Any, ...]], Any]:
    """The rows, and the query for its metrics."""
    got: list[Any] = []
    query = (
        result.writeStream.foreachBatch(lambda batch, _: got.extend(batch.collect()))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return Counter(map(tuple, got)), query
