"""Joins without an equality on Spark: results through a restart, routings, refusals."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, State, Time, explain_join, multiway_join
from support.s3_server import s3_server, storage_options
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    pieces,
    run_to_end,
)

pytestmark = pytest.mark.spark

STATE = State(backend=BACKEND, memory="8m", buckets=5)


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Points, intervals, and values with a key; some are null."""
    rng = random.Random(3)

    def some(count: int, most: int) -> pa.Array:
        values = [None if rng.random() < 0.05 else rng.randrange(most) for _ in range(count)]
        return pa.array(values, pa.int64())

    a = pa.table({"x": some(150, 500), "k": some(150, 4)})
    b = pa.table({"y": some(150, 500), "z": some(150, 500), "s": [f"s{n}" for n in range(150)]})
    c = pa.table({"j": some(60, 4), "w": some(60, 500)})
    return {
        "a": FileStream(tmp_path / "a", "x BIGINT, k BIGINT").add(*pieces(a, 3)),
        "b": FileStream(tmp_path / "b", "y BIGINT, z BIGINT, s STRING").add(*pieces(b, 2)),
        "c": FileStream(tmp_path / "c", "j BIGINT, w BIGINT").add(*pieces(c, 2)),
    }


def read(spark: Any, streams: dict[str, FileStream], names: str) -> dict[str, Any]:
    return {name: streams[name].read(spark) for name in names}


def test_a_band_join_of_two_streams_with_a_restart(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = "abs(a.x - b.y) <= 20 AND reverse(b.s) <> '1s'"
    skew = Skew(rows={"a": 2, "b": 3}, routing="biclique")
    joined = multiway_join(read(spark, streams, "ab"), on, skew=skew, state=STATE)
    told = explain_join(joined)
    assert "condition abs(a.x - b.y) <= 20: range in b, checked on candidates, range in a" in told
    assert "left to Spark" in told
    assert "routing biclique: 2 buckets for a, 3 for b" in told
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    streams["a"].add(pa.table({"x": [100, 200], "k": [1, 2]}))
    again = multiway_join(read(spark, streams, "ab"), on, state=STATE)
    run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    expected = "SELECT * FROM {a} a JOIN {b} b ON abs(a.x - b.y) <= 20 AND s <> 's1'"
    sql = expected.format(**{name: stream.sql for name, stream in streams.items()})
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=500)
    other = multiway_join(read(spark, streams, "ab"), on, skew=Skew(routing="shares"), state=STATE)
    query = other.writeStream.format("noop").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(Exception, match="routing"):
        query.start().awaitTermination(60)


def test_a_band_join_goes_on_with_the_routing_that_its_first_start_chose(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = "abs(a.x - b.y) <= 20"
    joined = multiway_join(read(spark, streams, "ab"), on, state=STATE)
    told = explain_join(joined)
    assert "routing ranges" in told
    assert "chosen by its cost in messages a row (biclique 3.5 and ranges 3)" in told
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    streams["a"].add(pa.table({"x": [100, 200], "k": [1, 2]}))
    fewer = State(backend=BACKEND, memory="8m")  # so many as this machine would have
    again = multiway_join(read(spark, streams, "ab"), on, state=fewer)
    assert "routing biclique" in explain_join(again)
    run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    expected = "SELECT * FROM {a} a JOIN {b} b ON abs(a.x - b.y) <= 20"
    sql = expected.format(**{name: stream.sql for name, stream in streams.items()})
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=500)
    tables = tmp_path / "checkpoint" / "lsmstate" / "routes"
    assert (tables / f"table-{0:010d}.json").exists()


@pytest.mark.stress
def test_ranges_with_their_state_on_s3(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    """Six micro-batches and a restart: the tables of ranges lie on S3 too."""
    on = "abs(a.x - b.y) <= 20"
    with s3_server() as server:
        options = storage_options(server)
        files = S3FileSystem(**options, allow_bucket_creation=True)
        files.create_dir("queries")
        for start in range(2):
            rows = {"x": list(range(start, 500, 7)), "k": [1] * len(range(start, 500, 7))}
            streams["a"].add(*pieces(pa.table(rows), 4))
            state = State(
                memory="8m",
                buckets=5,
                state_dir="s3://queries/ranges",
                storage_options=options,
                cache_dir=str(tmp_path),
            )
            joined = multiway_join(
                read(spark, streams, "ab"), on, skew=Skew(routing="ranges"), state=state
            )
            run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
        found = files.get_file_info(FileSelector("queries/ranges/routes"))
        tables = [info.path for info in found if "/table-" in info.path]
        assert len(tables) >= 2, found
    expected = "SELECT * FROM {a} a JOIN {b} b ON abs(a.x - b.y) <= 20"
    sql = expected.format(**{name: stream.sql for name, stream in streams.items()})
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=500)


@pytest.mark.stress
def test_three_streams_of_which_one_has_a_range_alone(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = "a.k = c.j AND a.x + c.w BETWEEN b.y AND b.y + 30"
    joined = multiway_join(read(spark, streams, "abc"), on, state=STATE)
    assert "routing shares" in explain_join(joined)
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    streams["b"].add(pa.table({"y": [400], "z": [1], "s": ["later"]}))
    again = multiway_join(read(spark, streams, "abc"), on, state=STATE)
    run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    expected = "SELECT a.*, b.*, c.* FROM {a} a JOIN {c} c ON k = j JOIN {b} b "
    expected += "ON x + w BETWEEN y AND y + 30"
    sql = expected.format(**{name: stream.sql for name, stream in streams.items()})
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=500)


def test_what_does_not_fit_is_refused(spark: Any, streams: dict[str, FileStream]) -> None:
    frames = read(spark, streams, "ab")
    with pytest.raises(InvalidArgumentError, match="routing='ring' is unknown"):
        multiway_join(frames, "a.x < b.y", skew=Skew(routing="ring"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="routing='hash': no equality"):
        multiway_join(frames, "a.x < b.y", skew=Skew(routing="hash"))
    with pytest.raises(InvalidArgumentError, match="has no range between two streams"):
        multiway_join(frames, "a.x <> b.y", skew=Skew(routing="ranges"))
    with pytest.raises(InvalidArgumentError, match="hot_keys='spread': no equality connects"):
        multiway_join(frames, "a.x < b.y", skew=Skew(hot_keys="spread"))
    with pytest.raises(InvalidArgumentError, match="give buckets=1"):
        multiway_join(frames, "a.x < b.y", how="full", emit="changes", state=STATE)
    once = Skew(routing="biclique")
    with pytest.raises(InvalidArgumentError, match="have to lie in one bucket"):
        multiway_join(frames, "a.x < b.y", how="left", emit="changes", skew=once)
    with pytest.raises(InvalidArgumentError, match="the function reverse is not known here"):
        multiway_join(frames, "a.x < b.y AND reverse(b.s) > 'x'", how="left", emit="changes")
    assert "warning: no condition connects b to a" in explain_join(multiway_join(frames, "TRUE"))


def net_of(out: Path) -> Counter[tuple[Any, ...]]:
    """What has come and not gone."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in committed(out):
        for sign, *row in zip(*(c.to_pylist() for c in pq.read_table(path).columns), strict=True):
            found[tuple(row)] += 1 if sign == "+I" else -1
    assert min(found.values(), default=0) >= 0
    return +found


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_a_changelog_joined_by_a_range_shows_no_operations_of_its_own(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path, kind: str
) -> None:
    dimension = FileStream(tmp_path / "d", "op STRING, low BIGINT, at TIMESTAMP").add()
    frames = {"a": streams["a"].read(spark), "d": dimension.read(spark)}
    joined = multiway_join(
        frames, "a.x >= d.low", how=kind, emit="changes", changes={"d": "OP"}, state=STATE
    )
    assert joined.columns == ["op", "x", "k", "low", "at"]


@pytest.mark.stress
def test_an_outer_join_by_a_range_with_a_changelog_and_a_restart(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = "a LEFT JOIN d ON a.x BETWEEN d.low AND d.high AND a.k > 0"
    dimension = FileStream(tmp_path / "d", "op STRING, low BIGINT, high BIGINT")
    dimension.add(pa.table({"op": ["+I"] * 3, "low": [0, 100, 400], "high": [30, 180, 401]}))

    def joined() -> Any:
        frames = {"a": streams["a"].read(spark), "d": dimension.read(spark)}
        return multiway_join(frames, on, emit="changes", changes={"d": "op"}, state=STATE)

    told = explain_join(joined())
    assert "join: a LEFT JOIN d" in told
    assert "changelogs: d by op" in told
    assert "routing shares" in told
    run_to_end(joined(), tmp_path / "checkpoint", tmp_path / "out")
    later = {"op": ["-D", "-U", "+U"], "low": [0, 100, 300], "high": [30, 180, 380]}
    dimension.add(pa.table(later))
    streams["a"].add(pa.table({"x": [350, 20], "k": [1, 1]}))
    run_to_end(joined(), tmp_path / "checkpoint", tmp_path / "out")
    left = "(VALUES (300, 380), (400, 401)) d(low, high)"
    sql = f"SELECT * FROM {streams['a'].sql} a LEFT JOIN {left} ON x BETWEEN low AND high AND k > 0"
    found = net_of(tmp_path / "out")
    assert found == Counter(duckdb.sql(sql).fetchall())
    assert len([row for row in found if row[2] is not None]) == 18
    changed = multiway_join(
        {"a": streams["a"].read(spark), "d": dimension.read(spark)},
        on.replace("LEFT", "LEFT ANTI"),
        emit="changes",
        changes={"d": "op"},
        state=STATE,
    )
    query = changed.writeStream.format("noop").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(Exception, match="joins other than inner"):
        query.start().awaitTermination(60)


@pytest.mark.stress
@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("on", ["abs(a.x - b.y) <= 3", "a.k = b.z AND a.x < b.y"])
def test_outer_joins_by_a_range_through_a_restart(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path, how: str, on: str
) -> None:
    state = State(backend=BACKEND, memory="8m", buckets=1 if how == "full" else 3)
    for more in (None, {"x": [100, 900, None], "k": [1, 2, None]}):
        if more is not None:
            streams["a"].add(pa.table(more, schema=pa.schema([("x", "int64"), ("k", "int64")])))
        frames = read(spark, streams, "ab")
        joined = multiway_join(frames, on, how=how, emit="changes", state=state)  # type: ignore[arg-type]
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    a, b = (streams[name].sql for name in "ab")
    found = net_of(tmp_path / "out")
    assert found == Counter(duckdb.sql(f"SELECT * FROM {a} a {how} JOIN {b} b ON {on}").fetchall())
    assert found


@pytest.mark.stress
@pytest.mark.parametrize("how", ["left", "full", "anti"])
def test_final_outer_joins_by_an_interval_alone(spark: Any, tmp_path: Path, how: str) -> None:
    rng = random.Random(8)
    start = datetime(2024, 1, 1, tzinfo=UTC)

    def some(count: int, name: str) -> pa.Table:
        at = [start + timedelta(minutes=rng.randrange(300)) for _ in range(count)]
        return pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), name: list(range(count))})

    tables = {"a": some(60, "x"), "b": some(60, "y")}
    files = {
        name: FileStream(tmp_path / name, f"at TIMESTAMP, {table.column_names[1]} BIGINT")
        for name, table in tables.items()
    }
    for name, table in tables.items():
        files[name].add(*pieces(table.sort_by("at"), 6))
        end = pa.array([datetime(2025, 1, 1, tzinfo=UTC)] * 1, pa.timestamp("us", "UTC"))
        files[name].add(pa.table([end, pa.array([-1], pa.int64())], schema=table.schema))
    on = "b.at BETWEEN a.at - INTERVAL 2 MINUTES AND a.at + INTERVAL 4 MINUTES AND a.x <> b.y"
    state = State(backend=BACKEND, memory="8m", buckets=1 if how == "full" else 3)
    for _ in range(2):
        frames = {n: f.read(spark).withWatermark("at", "5 hours") for n, f in files.items()}
        joined = multiway_join(frames, on, how=how, emit="final", state=state)  # type: ignore[arg-type]
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    a, b = (f"(SELECT * FROM {files[name].sql} t WHERE t.at < '2025-01-01')" for name in "ab")
    assert_same_rows(
        f"SELECT * FROM {a} a {how} JOIN {b} b ON {on}",
        committed(tmp_path / "out"),
        at_least=5,
    )


@pytest.mark.stress
def test_an_inner_join_by_an_interval_alone_forgets_rows(spark: Any, tmp_path: Path) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    files = {}
    for name, column in (("a", "x"), ("b", "y")):
        files[name] = FileStream(tmp_path / name, f"at TIMESTAMP, {column} BIGINT")
        for part in range(6):
            at = [start + timedelta(hours=part, minutes=n) for n in range(20)]
            stamps = pa.array(at, pa.timestamp("us", "UTC"))
            files[name].add(pa.table({"at": stamps, column: range(20)}))
    state = State(backend=BACKEND, memory="8m", buckets=3)
    for _ in range(2):
        frames = {n: f.read(spark).withWatermark("at", "1 minute") for n, f in files.items()}
        joined = multiway_join(
            frames,
            "a.x <= b.y",
            skew=Skew(routing="biclique"),
            time=Time(within="3 minutes"),
            state=state,
        )
        assert "rows are kept (a: until the watermark is 0:03:00 past at" in explain_join(joined)
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    a, b = (files[name].sql for name in "ab")
    near = "abs(epoch_us(a.at) - epoch_us(b.at)) <= 180000000"
    assert_same_rows(
        f"SELECT * FROM {a} a JOIN {b} b ON {near} AND x <= y",
        committed(tmp_path / "out"),
        at_least=100,
    )
