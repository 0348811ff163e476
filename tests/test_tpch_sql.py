"""TPC-H's queries as they are written, over streams: every micro-batch's answer is DuckDB's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

pytest.importorskip("pyspark")

from spark_streams import FileStream
from tpch_queries import STAGED, STREAMED
from tpch_tables import MICRO_BATCHES, arrived, tpch_streams

from lsmstate.spark import streaming_sql

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

#: Inputs of the group that is merged; Q15 joins a table with an aggregate, which is left to Spark.
INPUTS = {
    "Q2": 5,
    "Q3": 3,
    "Q5": 6,
    "Q7": 6,
    "Q8": 8,
    "Q9": 6,
    "Q10": 4,
    "Q11": 3,
    "Q15": None,
    "Q18": 3,
    "Q21": 4,
}
#: In make test; the others in make stress.
QUICK = ("Q3",)

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def tables(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FileStream]]:
    """Streaming views of all tables, at scale 0.01."""
    streams = tpch_streams(tmp_path_factory.mktemp("tpch"), 0.01)
    for name, stream in streams.items():
        stream.read(spark).createOrReplaceTempView(name)
    yield streams
    for name in streams:
        spark.catalog.dropTempView(name)


def expected(tables: dict[str, FileStream], sql: str, micro_batches: int) -> Rows:
    with duckdb.connect() as db:
        for name, stream in tables.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM {arrived(stream, micro_batches)}")
        return db.execute(sql).fetchall()


def assert_same(found: Rows, wanted: Rows) -> None:
    """In the same order; numbers as close as sums of decimals and of doubles are."""
    assert len(found) == len(wanted)
    for row, other in zip(found, wanted, strict=True):
        for value, exact in zip(row, other, strict=True):
            if isinstance(exact, float) or hasattr(exact, "as_tuple"):
                assert float(value) == pytest.approx(float(exact), rel=1e-6)
            else:
                assert value == exact


def queries(all_of: dict[str, str]) -> list[Any]:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.stress) for name in all_of
    ]


@pytest.mark.parametrize("name", queries(STREAMED))
def test_streamed(spark: Any, tables: dict[str, FileStream], tmp_path: Path, name: str) -> None:
    sql = STREAMED[name]
    query = streaming_sql(spark, sql, strict=True, memory="16m", buckets=4)
    assert f"of {INPUTS[name]} inputs" in query.explain_multiway()
    answers: list[Rows] = []
    started = (
        query.writeStream.outputMode("complete")
        .foreachBatch(lambda df, _: answers.append([tuple(row) for row in df.collect()]))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    for number in (1, MICRO_BATCHES - 1):
        wanted = expected(tables, sql, min(number + 1, MICRO_BATCHES))
        assert_same(answers[number], wanted)
    assert answers[-1], "a query without rows shows nothing"


@pytest.mark.parametrize("name", queries(STAGED))
def test_staged(spark: Any, tables: dict[str, FileStream], tmp_path: Path, name: str) -> None:
    sql = STAGED[name]
    staged = streaming_sql(spark, sql, memory="16m", buckets=4).staged(str(tmp_path))
    joins = [found for found in staged.fragments if found.startswith("join of")]
    assert [found.count(",") + 1 for found in joins] == [n for n in [INPUTS[name]] if n]
    answers: list[Rows] = []
    staged.start(
        lambda df, _: answers.append([tuple(row) for row in df.collect()]),
        trigger={"availableNow": True},
    ).awaitTermination()
    for number in range(MICRO_BATCHES):
        assert_same(answers[number], expected(tables, sql, number + 1))
    assert answers[-1], "a query without rows shows nothing"
