"""Streams for tests: files that arrive one by one, and DuckDB's answer to the same join."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from lsmstate.spark_integration.metrics.reports import by_name

#: The backend of these tests; ``LSMSTATE_TEST_BACKEND=memory`` for a quick look.
BACKEND = os.environ.get("LSMSTATE_TEST_BACKEND", "lsm")


@dataclass
class FileStream:
    """A directory of Parquet files read as a stream, one file per micro-batch."""

    directory: Path
    schema: str
    """Spark's DDL of the columns."""
    files: int = field(default=0)

    def add(self, *tables: pa.Table) -> "FileStream":
        """Let files arrive, in this order."""
        self.directory.mkdir(exist_ok=True, parents=True)
        for table in tables:
            path = self.directory / f"{self.files:04d}.parquet"
            hidden = path.with_name("." + path.name)
            pq.write_table(table, hidden)
            # Spark orders files by their time; one second apart is certain to differ.
            os.utime(hidden, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            hidden.rename(path)
            self.files += 1
        return self

    def read(self, spark: Any, files_per_batch: int = 1) -> Any:
        reader = spark.readStream.schema(self.schema)
        return reader.option("maxFilesPerTrigger", files_per_batch).parquet(str(self.directory))

    @property
    def sql(self) -> str:
        return f"read_parquet('{self.directory}/*.parquet')"


def pieces(table: pa.Table, count: int) -> list[pa.Table]:
    """The table cut into ``count`` files."""
    step = -(-table.num_rows // count)
    return [table.slice(i * step, step) for i in range(count)]


def run_to_end(joined: Any, checkpoint: Path | str, out: Path) -> Any:
    """Everything that has arrived, in as many micro-batches as there are files."""
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()
    return query


def committed(out: Path) -> list[str]:
    """The files the sink's log names; what a failed batch left beside them does not count."""
    import json

    log = out / "_spark_metadata"
    found: dict[str, None] = {}
    for entry in sorted(log.iterdir(), key=lambda p: p.name):
        if entry.name.startswith("."):
            continue
        for line in entry.read_text().splitlines()[1:]:
            path = json.loads(line)["path"]
            found[path.split(":", 1)[1].replace("///", "/")] = None
    return list(found)


def assert_same_rows(expected_sql: str, files: Sequence[str], at_least: int = 1) -> int:
    """The files hold exactly the rows of the query, as a multiset; returns how many."""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE VIEW expected AS {expected_sql}")
        actual = ", ".join(f"'{path}'" for path in files)
        db.execute(f"CREATE VIEW actual AS SELECT * FROM read_parquet([{actual}])")
        expected_count, actual_count = (
            _one(db.execute(f"SELECT count(*) FROM {name}").fetchone())
            for name in ("expected", "actual")
        )
        for left, right in (("expected", "actual"), ("actual", "expected")):
            only = db.execute(
                f"SELECT * FROM {left} EXCEPT ALL SELECT * FROM {right} LIMIT 3"
            ).fetchall()
            assert only == [], f"only in {left} ({expected_count}, {actual_count} rows): {only}"
        assert expected_count == actual_count
        assert expected_count >= at_least, "the test joins nothing"
        return int(expected_count)


def _one(row: tuple[Any, ...] | None) -> Any:
    assert row is not None
    return row[0]


def metric(query: Any, name: str) -> list[int]:
    """One observed metric of every micro-batch."""
    found: Iterable[Any] = query.recentProgress
    seen = [p["observedMetrics"].get("lsmstate") for p in found]
    return [by_name(row)[name] for row in seen if row is not None]


def collected(joined: Any, home: Path) -> list[Any]:
    """The rows of everything that has arrived since the checkpoint in ``home``."""
    got: list[Any] = []
    query = (
        joined.writeStream.foreachBatch(lambda batch, _: got.extend(batch.collect()))
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return got
