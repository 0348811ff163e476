"""A query over streams, run micro-batch by micro-batch, beside DuckDB's answer after each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from math import isclose
from pathlib import Path
from typing import Any

import duckdb

from lsmstate.joins.plan.tsc import two_step_convert
from lsmstate.spark import streaming_sql
from support.benchmark_tables import MICRO_BATCHES, arrived
from support.grouped import grouped
from support.spark_streams import FileStream

Rows = list[tuple[Any, ...]]
Streams = Mapping[str, FileStream]
#: Numbers of the micro-batches after which answers are compared: a middle one and the last.
COMPARED = (MICRO_BATCHES // 2, MICRO_BATCHES - 1)


@dataclass(frozen=True)
class Answers:
    """What a query said after each micro-batch, and how it was run."""

    after: list[Rows]
    """Empty in append mode, whose rows lie in files."""
    explanation: str
    groups: list[int]
    """Inputs of every group of joins that the conversion found, the largest first."""
    merged: list[int]
    """Inputs of those that the operator runs."""
    note: str
    """Why joins were left to Spark."""


@contextmanager
def views(spark: Any, streams: Streams) -> Iterator[None]:
    """The streams as temporary views of their names."""
    for name, stream in streams.items():
        stream.read(spark).createOrReplaceTempView(name)
    try:
        yield
    finally:
        for name in streams:
            spark.catalog.dropTempView(name)


def answers(spark: Any, sql: str, mode: str, home: Path, **options: Any) -> Answers:
    """Run the query over everything that has arrived; ``mode``: complete, append or staged.

    The rows of append mode are written to ``home/rows/<number of the micro-batch>``.
    """
    quoted = sql.replace('"', "`")  # as Spark quotes names
    query = streaming_sql(spark, quoted, **grouped(strict=mode != "staged", **options))
    after: list[Rows] = []

    def keep(df: Any, number: int) -> None:
        if mode == "append":
            df.write.mode("overwrite").parquet(str(home / "rows" / str(number)))
        else:
            after.append([tuple(row) for row in df.collect()])

    once = {"availableNow": True}
    if mode == "staged":
        staged = query.staged(str(home))
        staged.start(keep, trigger=once).awaitTermination()
        trees = [part.read.tree for part in staged._fragments.part.all()]
        joins = [name for name in staged.fragments if name.startswith("join of")]
        merged = [name.count(",") + 1 for name in joins]
        explanation = staged.explain_multiway()
    else:
        writer = query.writeStream.outputMode(mode).foreachBatch(keep).trigger(**once)
        writer.option("checkpointLocation", str(home / "checkpoint")).start().awaitTermination()
        conversion = query.converted.conversion
        assert conversion is not None, "no plan was read"
        trees = [conversion.before]
        merged = [len(found.inputs) for found in conversion.multi_joins]
        explanation = query.explain_multiway()
    groups = [len(m.inputs) for tree in trees for m in two_step_convert(tree).multi_joins]
    return Answers(after, explanation, sorted(groups, reverse=True), merged, query.note)


def expected(streams: Streams, sql: str, number: int) -> Rows:
    """DuckDB's answer over what has arrived by the end of a micro-batch."""
    with duckdb.connect() as db:
        db.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")  # as in Spark
        for name, stream in streams.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {arrived(stream, number + 1)}")
        return db.execute(sql).fetchall()


def differing_rows(found: Rows, wanted: Rows) -> list[tuple[Any, Any]]:
    """Pairs of rows that differ in their place, or lack a partner; the first three."""
    padding = [()] * abs(len(found) - len(wanted))
    pairs = zip([*found, *padding], [*wanted, *padding], strict=False)
    return [(row, other) for row, other in pairs if not is_same_row(row, other)][:3]


def is_same_row(row: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(row) == len(other) and all(map(_is_same, row, other))


def _is_same(value: Any, exact: Any) -> bool:
    """Averages and quotients of decimals are decimals in Spark, doubles in DuckDB."""
    if isinstance(value, float | Decimal) and isinstance(exact, float | Decimal):
        return isclose(value, exact, rel_tol=1e-6, abs_tol=1e-6)
    return bool(value == exact)


def differing_appended(streams: Streams, sql: str, home: Path, number: int) -> list[Any]:
    """Rows that append mode gave by the end of a micro-batch and DuckDB does not, or the other way
    round; the first three of each."""
    files = ", ".join(f"'{home}/rows/{n}/*.parquet'" for n in range(number + 1))
    with duckdb.connect() as db:
        for name, stream in streams.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {arrived(stream, number + 1)}")
        db.execute(f"CREATE TABLE wanted AS {sql}")
        db.execute(f"CREATE VIEW found AS SELECT * FROM read_parquet([{files}])")
        assert db.execute("SELECT count(*) FROM wanted").fetchone() != (0,)
        both = (("found", "wanted"), ("wanted", "found"))
        queries = [f"SELECT * FROM {a} EXCEPT ALL SELECT * FROM {b} LIMIT 3" for a, b in both]
        return [row for query in queries for row in db.execute(query).fetchall()]
