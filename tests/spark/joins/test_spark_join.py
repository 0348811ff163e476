"""multiway_join end to end: every row DuckDB finds, and no other, with its type."""

import datetime
import decimal
import json
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, multiway_join
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    collected,
    committed,
    metric,
    pieces,
    run_to_end,
)

pytestmark = pytest.mark.spark

ALL_TYPES = (
    "k INT, flag BOOLEAN, tiny TINYINT, small SMALLINT, big BIGINT, f FLOAT, d DOUBLE, "
    "price DECIMAL(9,2), huge DECIMAL(38,10), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "text STRING, raw BINARY, tags ARRAY<STRING>, "
    "place STRUCT<x: INT, deep: STRUCT<y: ARRAY<BIGINT>>>"
)


def all_types_table(rows: int, seed: int) -> pa.Table:
    """Rows of every type, each value null now and then."""
    rng = random.Random(seed)

    def some(make: Any) -> list[Any]:
        return [None if rng.random() < 0.15 else make(i) for i in range(rows)]

    def stamp(i: int) -> datetime.datetime:
        return datetime.datetime(1960 + i % 90, 1 + i % 12, 1 + i % 28, i % 24, 0, 0, i * 997)

    place = pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.list_(pa.int64()))]))])
    columns = {
        "k": pa.array(some(lambda i: i % 40), pa.int32()),
        "flag": pa.array(some(lambda i: i % 3 == 0), pa.bool_()),
        "tiny": pa.array(some(lambda i: i % 256 - 128), pa.int8()),
        "small": pa.array(some(lambda i: i * 31 % 65536 - 32768), pa.int16()),
        "big": pa.array(some(lambda i: (-1) ** i * (1 << 62) + i), pa.int64()),
        "f": pa.array(some(lambda i: [float("nan"), -0.0, 1.5][i % 3]), pa.float32()),
        "d": pa.array(some(lambda i: [float("inf"), 0.0, i / 7][i % 3]), pa.float64()),
        "price": pa.array(some(lambda i: decimal.Decimal(i - 50) / 4), pa.decimal128(9, 2)),
        "huge": pa.array(
            some(lambda i: decimal.Decimal(10) ** 27 + decimal.Decimal(i) / 1000),
            pa.decimal128(38, 10),
        ),
        "day": pa.array(some(lambda i: stamp(i).date()), pa.date32()),
        "at": pa.array(some(stamp), pa.timestamp("us", tz="UTC")),
        "local": pa.array(some(stamp), pa.timestamp("us")),
        "text": pa.array(some(lambda i: "é" * (i % 5) + str(i)), pa.string()),
        "raw": pa.array(some(lambda i: bytes([i % 256, 0, 255])), pa.binary()),
        "tags": pa.array(some(lambda i: ["a", None, str(i)][: i % 4]), pa.list_(pa.string())),
        "place": pa.array(some(lambda i: {"x": i, "deep": {"y": [i, None]}}), place),
    }
    return pa.table(columns)


@pytest.mark.stress
def test_every_type_comes_through_unchanged(spark: Any, tmp_path: Path) -> None:
    a = FileStream(tmp_path / "a", ALL_TYPES).add(*pieces(all_types_table(120, 1), 3))
    b = FileStream(tmp_path / "b", "k BIGINT, note STRING").add(
        pa.table({"k": pa.array([i % 45 for i in range(60)], pa.int64()), "note": ["n"] * 60})
    )
    c = FileStream(tmp_path / "c", "c_key DECIMAL(12,2) NOT NULL, text STRING").add(
        *pieces(
            pa.table(
                {
                    "c_key": pa.array(
                        [decimal.Decimal(i % 50) for i in range(70)], pa.decimal128(12, 2)
                    ),
                    "text": [f"t{i}" for i in range(70)],
                }
            ),
            2,
        )
    )
    streams = {"a": a.read(spark), "b": b.read(spark), "c": c.read(spark)}
    joined = multiway_join(
        streams, on="a.k = b.k AND b.k = c.c_key", state=State(memory="16m", backend=BACKEND)
    )
    inputs = [field for frame in streams.values() for field in frame.schema]
    assert [f.dataType for f in joined.schema] == [f.dataType for f in inputs]
    assert [f.nullable for f in joined.schema] == [f.nullable for f in inputs]
    assert joined.columns[:2] == ["a_k", "flag"]
    assert joined.columns[-5:] == ["place", "b_k", "note", "c_key", "c_text"]

    out = tmp_path / "out"
    query = run_to_end(joined, tmp_path / "check point", out)
    rows = assert_same_rows(
        f"SELECT * FROM {a.sql} a JOIN {b.sql} b ON a.k = b.k JOIN {c.sql} c ON b.k = c.c_key",
        committed(out),
        at_least=100,
    )
    assert sum(metric(query, "rows_out")) == rows
    assert (tmp_path / "check point" / "lsmstate" / "query.json").exists()


@pytest.mark.stress
def test_every_type_where_rows_are_in_many_results(spark: Any, tmp_path: Path) -> None:
    a = FileStream(tmp_path / "a", ALL_TYPES).add(all_types_table(40, 1))
    b = FileStream(tmp_path / "b", "j SMALLINT, note STRING").add(
        pa.table({"j": pa.array([i % 2 for i in range(1000)], pa.int16()), "note": ["n"] * 1000})
    )
    streams = {"a": a.read(spark).selectExpr("k % 2 AS k2", "*"), "b": b.read(spark)}
    joined = multiway_join(streams, on="a.k2 = b.j", state=State(memory="16m", backend=BACKEND))
    query = run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    rows = assert_same_rows(
        f"SELECT k % 2 AS k2, a.*, b.* FROM {a.sql} a JOIN {b.sql} b ON k % 2 = j",
        committed(tmp_path / "out"),
        at_least=12_000,
    )
    assert sum(metric(query, "rows_out")) == rows


@pytest.mark.stress
def test_composite_keys_and_null_keys(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(7)

    def table(rows: int, name: str) -> pa.Table:
        days = [datetime.date(2024, 1, 1 + rng.randrange(4)) for _ in range(rows)]
        texts = ["", "x", "x\0", "yy"]
        return pa.table(
            {
                f"{name}_day": pa.array([None if i % 9 == 0 else d for i, d in enumerate(days)]),
                f"{name}_text": pa.array(
                    [None if i % 7 == 0 else rng.choice(texts) for i in range(rows)], pa.string()
                ),
                f"{name}_n": pa.array(range(rows), pa.int32()),
            }
        )

    streams = {
        name: FileStream(tmp_path / name, f"{name}_day DATE, {name}_text STRING, {name}_n INT").add(
            *pieces(table(50, name), 2)
        )
        for name in ("a", "b", "c")
    }
    joined = multiway_join(
        {name: stream.read(spark) for name, stream in streams.items()},
        on={name: [f"{name}_text", f"{name}_day"] for name in streams},
        state=State(memory="16m", backend=BACKEND),
    )
    query = run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    a, b, c = (stream.sql for stream in streams.values())
    assert_same_rows(
        f"SELECT * FROM {a} JOIN {b} ON a_day = b_day AND a_text = b_text "
        f"JOIN {c} ON a_day = c_day AND a_text = c_text",
        committed(tmp_path / "out"),
        at_least=100,
    )
    # Rows with a null in their key never reach the operator.
    assert sum(metric(query, "rows_in")) < 150


def test_floating_keys_compare_as_sparks_do(spark: Any, tmp_path: Path) -> None:
    nan = float("nan")
    a = FileStream(tmp_path / "a", "k DOUBLE, n INT").add(
        pa.table({"k": [nan, 0.0, 1.5, None], "n": pa.array([1, 2, 3, 4], pa.int32())})
    )
    b = FileStream(tmp_path / "b", "k FLOAT, m INT").add(
        pa.table(
            {
                "k": pa.array([nan, -0.0, 1.5, None], pa.float32()),
                "m": pa.array([1, 2, 3, 4], pa.int32()),
            }
        )
    )
    joined = multiway_join(
        {"a": a.read(spark), "b": b.read(spark)}, on=["k"], state=State(backend=BACKEND)
    )
    got = collected(joined, tmp_path)
    assert sorted((row.n, row.m) for row in got) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.stress
def test_keys_of_every_type_and_casts_between_them(spark: Any, tmp_path: Path) -> None:
    """One row on each side matches, for every pair of types a key may have."""
    pairs = {
        "bool": ("BOOLEAN", "BOOLEAN", "true", "true"),
        "tiny": ("TINYINT", "INT", "-7", "-7"),
        "text": ("STRING", "STRING", "'é'", "'é'"),
        "number": ("STRING", "BIGINT", "'007'", "7"),
        "raw": ("BINARY", "STRING", "X'6162'", "'ab'"),
        "money": ("DECIMAL(7,2)", "DECIMAL(38,10)", "1.50", "1.5"),
        "whole": ("DECIMAL(7,2)", "INT", "3.00", "3"),
        "day": ("DATE", "TIMESTAMP", "DATE'2024-03-31'", "TIMESTAMP'2024-03-31 00:00:00'"),
        "local": (
            "TIMESTAMP",
            "TIMESTAMP_NTZ",
            "TIMESTAMP'2024-07-01 12:00:00'",
            "TIMESTAMP_NTZ'2024-07-01 12:00:00'",
        ),
        "real": ("FLOAT", "DOUBLE", "0.5", "0.5"),
    }
    sides = []
    for side in (0, 1):
        columns = [
            f"CAST({pair[2 + side]} AS {pair[side]}) AS {name}_{side}"
            for name, pair in pairs.items()
        ]
        one = spark.sql(f"SELECT {', '.join(columns)}")
        one.write.parquet(str(tmp_path / f"side{side}"))
        sides.append(spark.readStream.schema(one.schema).parquet(str(tmp_path / f"side{side}")))
    joined = multiway_join(
        {"l": sides[0], "r": sides[1]},
        on=" AND ".join(f"l.{name}_0 = r.{name}_1" for name in pairs),
        state=State(backend=BACKEND),
    )
    got = collected(joined, tmp_path)
    assert len(got) == 1
    assert (got[0].money_0, got[0].number_0) == (decimal.Decimal("1.50"), "007")
    pinned = json.loads((tmp_path / "checkpoint" / "lsmstate" / "query.json").read_text())
    assert pinned["settings"]["time zone of the keys"] == "Europe/Berlin"


def _numbers(path: Path, name: str, rows: int, files: int, keys: int) -> FileStream:
    table = pa.table(
        {
            f"{name}_k": pa.array([i * 7 % keys for i in range(rows)], pa.int64()),
            f"{name}_n": pa.array(range(rows), pa.int64()),
        }
    )
    return FileStream(path / name, f"{name}_k BIGINT, {name}_n BIGINT").add(*pieces(table, files))


@pytest.mark.stress
def test_two_actions_of_foreachbatch_see_the_same_rows(spark: Any, tmp_path: Path) -> None:
    a, b = (_numbers(tmp_path, name, 60, 3, 20) for name in "ab")
    joined = multiway_join(
        {"a": a.read(spark), "b": b.read(spark)}, on="a.a_k = b.b_k", state=State(backend=BACKEND)
    )
    first: list[Any] = []
    second: list[Any] = []

    def twice(batch: Any, _: int) -> None:
        first.append(sorted(batch.collect()))
        second.append(sorted(batch.collect()))

    query = (
        joined.writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert first == second
    assert len(first) == 3
    assert sum(map(len, first)) == 60 * 3


@pytest.mark.stress
def test_two_queries_at_once_keep_apart(spark: Any, tmp_path: Path) -> None:
    outs, joins = {}, {}
    for number, keys in enumerate((10, 15)):
        home = tmp_path / str(number)
        a, b = (_numbers(home, name, 60, 3, keys) for name in "ab")
        outs[number] = (f"SELECT * FROM {a.sql} JOIN {b.sql} ON a_k = b_k", home)
        joins[number] = multiway_join(
            {"a": a.read(spark), "b": b.read(spark)},
            on="a.a_k = b.b_k",
            state=State(buckets=2 + number, backend=BACKEND),
        )
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            home = outs[number][1]
            run_to_end(joins[number], home / "checkpoint", home / "out")
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in joins]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for number, (sql, home) in outs.items():
        assert_same_rows(sql, committed(home / "out"), at_least=100)
        buckets = list((home / "checkpoint" / "lsmstate").glob("bucket-*"))
        assert len(buckets) == 2 + number
