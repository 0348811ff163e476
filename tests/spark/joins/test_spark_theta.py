"""Joins without an equality on Spark: results through a restart, routings, refusals."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, State, explain_join, multiway_join
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
    joined = multiway_join(
        read(spark, streams, "ab"), on, skew=Skew(rows={"a": 2, "b": 3}), state=STATE
    )
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


def test_a_band_join_routed_by_ranges_with_a_restart(
    spark: Any, streams: dict[str, FileStream], tmp_path: Path
) -> None:
    on = "abs(a.x - b.y) <= 20"
    for more in (None, {"x": [100, 200], "k": [1, 2]}):
        if more is not None:
            streams["a"].add(pa.table(more))
        joined = multiway_join(
            read(spark, streams, "ab"), on, skew=Skew(routing="ranges"), state=STATE
        )
        assert "routing ranges" in explain_join(joined)
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
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
    with pytest.raises(InvalidArgumentError, match="emit='changes': no equality connects"):
        multiway_join(frames, "a.x < b.y", emit="changes")
    assert "warning: no condition connects b to a" in explain_join(multiway_join(frames, "TRUE"))
