"""Three streams and a table for tests of SQL, as views of Spark and of DuckDB."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from support.spark_streams import FileStream, pieces

#: Of each stream; so many micro-batches they come in.
FILES = 2


def make_files(home: Path) -> dict[str, FileStream]:
    """Customers, orders, lines in so many files each, and a small table; some keys are null."""
    rng = random.Random(11)

    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.05 else v for v in values], kind)

    cust = pa.table(
        {
            "ck": some(list(range(50)), pa.int32()),
            "nk": some([i % 5 for i in range(50)], pa.int32()),
            "seg": [f"s{i % 3}" for i in range(50)],
        }
    )
    ord_ = pa.table(
        {
            "ok": some([rng.randrange(100) for _ in range(150)], pa.int64()),
            "ck": some([rng.randrange(60) for _ in range(150)], pa.int64()),
            "price": pa.array([rng.randrange(100) for _ in range(150)], pa.int32()),
        }
    )
    line = pa.table(
        {
            "ok": some([rng.randrange(110) for _ in range(300)], pa.int32()),
            "qty": some([rng.randrange(9) for _ in range(300)], pa.int32()),
            "note": [f"n{i % 7}" for i in range(300)],
        }
    )
    nation = pa.table({"nk": pa.array(range(5), pa.int32()), "name": [f"N{i}" for i in range(5)]})
    return {
        "cust": FileStream(home / "cust", "ck INT, nk INT, seg STRING COMMENT 'market'").add(
            *pieces(cust, FILES)
        ),
        "ord": FileStream(home / "ord", "ok BIGINT, ck BIGINT, price INT").add(
            *pieces(ord_, FILES)
        ),
        "line": FileStream(home / "line", "ok INT, qty INT, note STRING").add(*pieces(line, FILES)),
        "nation": FileStream(home / "nation", "nk INT, name STRING").add(nation),
    }


@contextmanager
def views(spark: Any, files: dict[str, FileStream]) -> Iterator[None]:
    """In the block Spark's SQL knows the streams, and the table, by their names."""
    for name, stream in files.items():
        df = spark.read.parquet(str(stream.directory)) if name == "nation" else stream.read(spark)
        df.createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in files:
            spark.catalog.dropTempView(name)


def in_duckdb(files: dict[str, FileStream], sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, stream in files.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {stream.sql}")
        return db.execute(sql).fetchall()


def run(query: Any, home: Path, mode: str = "append") -> list[list[tuple[Any, ...]]]:
    """The rows of each micro-batch."""
    batches: list[list[tuple[Any, ...]]] = []

    def keep(df: Any, _number: int) -> None:
        batches.append([tuple(row) for row in df.collect()])

    started = (
        query.writeStream.outputMode(mode)
        .foreachBatch(keep)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    return batches


def rows_of(batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in batch]


def signature_of(query: Any) -> str:
    """What the checkpoint keeps of the merged join."""
    (wanted,) = operators_in(analyzed_plan(query.dataframe))
    return str(wanted.settings["multi-way join"])


def assert_appends(query: Any, sql: str, files: dict[str, FileStream], home: Path) -> None:
    found = Counter(rows_of(run(query, home)))
    expected = Counter(in_duckdb(files, sql))
    assert found == expected
    assert len(expected) > 20, "a query without rows shows nothing"


def so_far(files: dict[str, FileStream], count: int, sql: str) -> list[tuple[Any, ...]]:
    """DuckDB's answer over the first files of each stream."""
    with duckdb.connect() as db:
        for name, stream in files.items():
            listed = ", ".join(first_files(stream, count))
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")
        return db.execute(sql).fetchall()


def first_files(stream: FileStream, count: int) -> list[str]:
    paths = sorted(stream.directory.glob("*.parquet"))[:count]
    return [f"'{path}'" for path in paths]
