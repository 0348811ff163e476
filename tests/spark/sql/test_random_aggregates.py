"""Random aggregates over random joins, computed inside the operator, over a restart: the rows of
DuckDB and of a Spark batch."""

import math
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, streaming_sql
from support.spark_streams import FileStream
from support.sql_views import in_duckdb, run, views

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

SCHEMA = "k INT, m BIGINT, price DECIMAL(9,2), x DOUBLE, word STRING, day DATE"
#: Joins of two and three streams: by keys, by a range beside a key, and by a range alone.
JOINS = (
    "FROM t0 a JOIN t1 b ON a.k = b.k",
    "FROM t0 a JOIN t1 b ON a.k = b.k JOIN t2 c ON b.m = c.m",
    "FROM t0 a JOIN t1 b ON a.k = b.k JOIN t2 c ON a.k = c.k",
    "FROM t0 a JOIN t1 b ON a.k = b.k AND b.m BETWEEN a.m - 1 AND a.m + 1",
    "FROM t0 a JOIN t1 b ON a.k = b.k AND b.m >= a.m",
    "FROM t0 a JOIN t1 b ON b.m BETWEEN a.m AND a.m + 1",
)


def table(rng: random.Random) -> pa.Table:
    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else v for v in values], kind)

    numbers = [rng.randrange(6) for _ in range(rng.randint(5, 25))]
    return pa.table(
        {
            "k": some(numbers, pa.int32()),
            "m": some([rng.randrange(8) for _ in numbers], pa.int64()),
            "price": some(
                [Decimal(rng.randrange(-999, 999)).scaleb(-2) for _ in numbers],
                pa.decimal128(9, 2),
            ),
            "x": some([rng.choice([-0.0, 0.5, 1e9]) for _ in numbers], pa.float64()),
            "word": some([rng.choice(["a", "B", "ab", ""]) for _ in numbers], pa.string()),
            "day": some([rng.randrange(3) for _ in numbers], pa.date32()),
        }
    )


def aggregate(streams: str, rng: random.Random) -> str:
    """A call that means the same in Spark and in DuckDB."""

    def one(*columns: str) -> str:
        return f"{rng.choice(streams)}.{rng.choice(columns)}"

    number, whole = one("k", "m", "price", "x"), one("k", "m")
    condition = f"{one('k', 'm')} < {one('k', 'm')}"
    call = rng.choice(
        [
            "count(*)",
            f"count({one('k', 'price', 'word')})",
            f"count_if({condition})",
            f"sum({number})",
            f"sum({whole} * {one('k', 'm')})",
            f"sum(CASE WHEN {condition} THEN {one('price')} END)",
            f"avg({one('k', 'm', 'x')})",
            f"min({one('k', 'price', 'word', 'day')})",
            f"max({one('m', 'x', 'word', 'day')})",
            f"bool_or({condition})",
            f"bool_and({condition})",
        ]
    )
    return call + (f" FILTER (WHERE {one('m')} > 2)" if rng.random() < 0.3 else "")


def random_query(rng: random.Random) -> str:
    joined = rng.choice(JOINS)
    streams = "abc" if "t2 c" in joined else "ab"
    group = rng.choice(
        [
            f"{rng.choice(streams)}.{rng.choice(['k', 'word', 'day'])}",
            f"{rng.choice(streams)}.k % 3",
        ]
    )
    calls = ", ".join(f"{aggregate(streams, rng)} AS v{at}" for at in range(rng.randint(1, 5)))
    return f"SELECT {group} AS g, {calls} {joined} GROUP BY {group}"


def comparable(row: tuple[Any, ...]) -> list[Any]:
    return [float(value) if isinstance(value, Decimal) else value for value in row]


def by_group(rows: Any) -> dict[Any, list[Any]]:
    """The last row of each group."""
    return {row[0]: comparable(row) for row in map(tuple, rows)}


def assert_alike(found: dict[Any, list[Any]], wanted: dict[Any, list[Any]]) -> None:
    assert found.keys() == wanted.keys()
    for group, row in wanted.items():
        for mine, its in zip(found[group], row, strict=True):
            if isinstance(its, float) and mine is not None:
                assert math.isclose(mine, its, rel_tol=1e-9, abs_tol=1e-9), (group, mine, its)
            else:
                assert mine == its, group


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n < 1 else pytest.mark.stress) for n in range(20)]
)
def test_random_aggregates_over_a_restart(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sql = random_query(rng)
    print(sql)
    files = {f"t{n}": FileStream(tmp_path / f"t{n}", SCHEMA).add(table(rng)) for n in range(3)}
    found: dict[Any, list[Any]] = {}
    for _ in range(2):
        for stream in files.values():
            stream.add(table(rng))
        with views(spark, files):
            query = streaming_sql(spark, sql, strict=True, state=State(buckets=2, memory="8m"))
            assert "computed inside the join" in query.converted.aggregates[0]
            for batch in run(query, tmp_path, "update"):
                found |= by_group(batch)
        # DuckDB's count_if of nulls alone is null.
        counted = re.sub(r"count_if\((.*?)\)", r"count(CASE WHEN \1 THEN 1 END)", sql)
        assert_alike(found, by_group(in_duckdb(files, counted)))
    for name, stream in files.items():
        read = spark.read.schema(SCHEMA).parquet(str(stream.directory))
        read.createOrReplaceTempView(name)
    assert_alike(found, by_group(spark.sql(sql).collect()))
