"""As-of joins on Spark: DuckDB's rows through a restart, and refusals."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import State, Time, asof_join, metrics_of
from support.kind_cases import CASES
from support.spark_streams import FileStream, committed, pieces, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

DDL = "k BIGINT, at TIMESTAMP, {} BIGINT"
COUNT, FILES = 400, 4


def test_results_through_a_restart(spark: Any, tmp_path: Path) -> None:
    case = CASES["as of"]
    tables = case.rows(COUNT, seed=9)
    late = datetime(2031, 1, 1, tzinfo=UTC)
    files = {
        name: FileStream(tmp_path / name, DDL.format(shown)).add(*pieces(tables[name], FILES)[:2])
        for name, shown in (("a", "x"), ("b", "y"))
    }
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"

    def joined() -> Any:
        streams = {
            name: stream.read(spark).withWatermark("at", "2 hours")
            for name, stream in files.items()
        }
        return asof_join(
            streams,
            "a.at >= b.at",
            by="k",
            how="left",
            tolerance="9 minutes",
            time=Time(late="side"),
            state=State(memory="8m", buckets=3),
        )

    run_to_end(joined(), checkpoint, out)
    for name, stream in files.items():
        end = dict.fromkeys(tables[name].column_names, 0)
        stream.add(*pieces(tables[name], FILES)[2:])
        stream.add(tables[name].from_pylist([{**end, "at": late}], schema=tables[name].schema))
        early = {**end, "at": late - timedelta(days=3000)}
        stream.add(tables[name].from_pylist([early], schema=tables[name].schema))
    query = run_to_end(joined(), checkpoint, out)
    found = Counter(
        tuple(row.values()) for path in committed(out) for row in pq.read_table(path).to_pylist()
    )
    assert found == case.expected(tables)
    assert sum(row[3] is not None for row in found) > 100
    assert sum(metrics_of(each).late_rows for each in query.recentProgress) == 2
    for name in files:
        kept = spark.read.format("lsmstate").option("stream", f"{name} (late)")
        assert [row["at"].year for row in kept.load(str(checkpoint)).collect()] == [2022]


@pytest.mark.stress
@pytest.mark.parametrize("on", ["a.at >= b.at", "a.at ~ b.at"])
def test_results_that_are_taken_back(spark: Any, tmp_path: Path, on: str) -> None:
    case = CASES["as of"]
    tables = case.rows(COUNT, seed=5)
    files = {
        name: FileStream(tmp_path / name, DDL.format(shown)).add(*pieces(tables[name], FILES))
        for name, shown in (("a", "x"), ("b", "y"))
    }
    streams = {n: f.read(spark).withWatermark("at", "2 hours") for n, f in files.items()}
    joined = asof_join(
        streams,
        on,
        by="k",
        how="left",
        emit="changes",
        tolerance="9 minutes",
        state=State(memory="8m", buckets=3),
    )
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    found: Counter[tuple[Any, ...]] = Counter()
    for path in committed(tmp_path / "out"):
        for sign, *row in (each.values() for each in pq.read_table(path).to_pylist()):
            found[tuple(row)] += 1 if sign == "+I" else -1
    expected = case.expected(tables) if on == case.on else nearest_within_9_minutes(tables)
    assert {row: n for row, n in found.items() if n} == expected


def nearest_within_9_minutes(tables: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """DuckDB's rows. Times within a stream differ."""
    sql = (
        "SELECT a.*, b.k AS k_b, b.at AS at_b, b.y FROM a LEFT JOIN b ON a.k = b.k "
        "AND b.at BETWEEN a.at - INTERVAL 9 MINUTES AND a.at + INTERVAL 9 MINUTES "
        "QUALIFY row_number() OVER "
        "(PARTITION BY a.at ORDER BY abs(epoch_us(a.at) - epoch_us(b.at)), b.at) = 1"
    )
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            db.register(name, table)
        rows = db.execute(sql).to_arrow_table().to_pylist()
    return Counter(tuple(row.values()) for row in rows)


@pytest.mark.stress
def test_without_equal_columns_all_rows_lie_in_one_bucket(spark: Any, tmp_path: Path) -> None:
    case = CASES["as of"]
    tables = case.rows(COUNT, seed=4)
    files = {
        name: FileStream(tmp_path / name, DDL.format(shown)).add(*pieces(tables[name], FILES))
        for name, shown in (("a", "x"), ("b", "y"))
    }
    end = datetime(2031, 1, 1, tzinfo=UTC)
    for name, stream in files.items():
        last = {**dict.fromkeys(tables[name].column_names, 0), "at": end}
        stream.add(tables[name].from_pylist([last], schema=tables[name].schema))
    streams = {n: f.read(spark).withWatermark("at", "2 hours") for n, f in files.items()}
    joined = asof_join(streams, "a.at > b.at", state=State(memory="8m", buckets=1))
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    found = Counter(
        tuple(row.values())
        for path in committed(tmp_path / "out")
        for row in pq.read_table(path).to_pylist()
    )
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            db.register(name, table)
        sql = "SELECT a.*, b.k AS k_b, b.at AS at_b, b.y FROM a ASOF JOIN b ON a.at > b.at"
        rows = db.execute(sql).to_arrow_table().to_pylist()
    assert found == Counter(tuple(row.values()) for row in rows)
    assert len(found) > 100


def test_what_does_not_fit_is_refused_by_name(spark: Any) -> None:
    plain = spark.readStream.format("rate").load().selectExpr("value AS k", "timestamp AS at")
    timed = plain.withWatermark("at", "1 minute")
    for streams, options, words in (
        ({"q": timed}, {"by": "k"}, "give two streaming DataFrames"),
        ({"q": timed, "p": timed}, {"by": ()}, "name at least one column"),
        ({"q": timed, "p": plain}, {"by": "k"}, "p.at has no watermark"),
        ({"q": timed, "p": timed}, {"time": Time(retention={"q": "1 day"})}, "not an option of"),
        ({"q": timed, "p": timed}, {"by": "k", "time": Time(late="join")}, "choose one of"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            asof_join(streams, "q.at >= p.at", **options)
