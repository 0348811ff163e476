"""Hot keys on Spark: counted, spread while the query runs, and every result exactly once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyarrow.fs import S3FileSystem
from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import Skew, explain_join, metrics_of, multiway_join, rescale
from lsmstate.spark_integration.tables.versioned_tables import PERIOD
from support.grouped import grouped
from support.s3_server import s3_server, storage_options
from support.spark_streams import FileStream, assert_same_rows

pytestmark = pytest.mark.spark

ROWS = 200
HOT = 7
#: Rows of the hot key in a file, about, by stream.
TWO = {"a": 60, "b": 60}
THREE = {"a": 4, "b": 100, "c": 4}


class Query:
    """A join of streams whose results of a micro-batch replace those of its last attempt."""

    def __init__(
        self, spark: Any, home: Path, hot: dict[str, int] | None = None, **options: Any
    ) -> None:
        self.spark, self.home, self.options = spark, home, options
        self.hot = hot or TWO
        self.streams = {
            name: FileStream(home / name, f"k BIGINT, {name}_row BIGINT") for name in self.hot
        }
        self.rng = np.random.default_rng(5)

    def arrive(self, files: int) -> None:
        for name, stream in self.streams.items():
            for _ in range(files):
                keys = self.rng.integers(100, 400, ROWS)
                keys[self.rng.random(ROWS) < self.hot[name] / ROWS] = HOT
                ids = np.arange(stream.files * ROWS, (stream.files + 1) * ROWS)
                nulls = self.rng.random(ROWS) < 0.02
                columns = {"k": pa.array(keys, mask=nulls), f"{name}_row": pa.array(ids)}
                stream.add(pa.table(columns))

    def joined(self) -> Any:
        streams = {name: stream.read(self.spark) for name, stream in self.streams.items()}
        options = {"hot_keys": "spread", "buckets": 4, "memory": "16m", **self.options}
        return multiway_join(streams, on=["k"], **grouped(**options))

    def run(self) -> list[Any]:
        def keep(rows: Any, batch: int) -> None:
            rows.coalesce(1).write.mode("overwrite").parquet(str(self.home / "out" / str(batch)))

        writer = self.joined().writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.home / "checkpoint")).start()
        query.awaitTermination()
        found = [metrics_of(progress) for progress in query.recentProgress]
        return [metrics for metrics in found if metrics is not None]

    def forget_last_commit(self) -> int:
        commits = self.home / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        return last

    def check(self) -> None:
        columns = ", ".join(f"{name}.k, {name}.{name}_row" for name in self.streams)
        first, *others = self.streams
        joins = (f"JOIN {self.streams[n].sql} {n} ON {first}.k = {n}.k" for n in others)
        expected = f"SELECT {columns} FROM {self.streams[first].sql} {first} {' '.join(joins)}"
        files = [str(path) for path in (self.home / "out").glob("*/*.parquet")]
        assert_same_rows(expected, files, at_least=1000)


def test_a_hot_key_is_spread_while_the_query_runs_and_batches_are_repeated(
    spark: Any, tmp_path: Path, few_partitions: None
) -> None:
    query = Query(spark, tmp_path)
    query.arrive(PERIOD + 1)
    found = query.run()
    query.check()
    table = tmp_path / f"checkpoint/lsmstate/routes/table-{PERIOD:010d}-000001.json"
    ((_, text, buckets),) = json.loads(table.read_text())["settings"]["keys"]
    assert (text, len(buckets)) == (str(HOT), 3)
    assert [metrics.copied_rows for metrics in found[:PERIOD]] == [0] * PERIOD
    hot_rows = count_hot(query)
    assert found[PERIOD].copied_rows == 2 * hot_rows
    assert found[PERIOD].rows_skew < found[PERIOD - 1].rows_skew
    hottest = found[PERIOD - 1].hottest_keys[0]
    assert (hottest.key, round(hottest.share, 1)) == (str(HOT), 0.3)

    explained = explain_join(query.joined(), str(tmp_path / "checkpoint"))
    assert f"hot key {HOT}: spread over buckets {', '.join(map(str, buckets))}" in explained

    before = table.read_bytes()
    assert query.forget_last_commit() == PERIOD
    query.arrive(1)
    again = query.run()
    assert [metrics.batch_id for metrics in again] == [PERIOD, PERIOD + 1]
    assert again[0].rows_out == found[PERIOD].rows_out
    assert table.read_bytes() == before
    query.check()


@pytest.mark.stress
def test_hot_keys_of_three_streams_with_the_state_on_s3(
    spark: Any, tmp_path: Path, few_partitions: None
) -> None:
    """Added buckets read what the owner has committed there; also in a repeated micro-batch."""
    with s3_server() as server:
        options = storage_options(server)
        S3FileSystem(**options, allow_bucket_creation=True).create_dir("queries")
        place = {"state_dir": "s3://queries/hot", "storage_options": options}
        query = Query(spark, tmp_path, THREE, cache_dir=str(tmp_path), **place)
        query.arrive(PERIOD + 1)
        query.run()
        query.check()
        explained = explain_join(query.joined(), str(tmp_path / "checkpoint"))
        assert f"hot key {HOT}: rows of b spread over buckets" in explained
        assert query.forget_last_commit() == PERIOD
        query.arrive(1)
        assert [metrics.batch_id for metrics in query.run()] == [PERIOD, PERIOD + 1]
        query.check()


def count_hot(query: Query) -> int:
    """Rows of the hot key in the last file of both streams."""
    import pyarrow.parquet as pq

    files = [max(stream.directory.iterdir()) for stream in query.streams.values()]
    return sum(pq.read_table(file)["k"].to_pylist().count(HOT) for file in files)


@pytest.mark.stress
def test_of_three_streams_one_is_spread_and_the_earlier_rows_of_the_others_are_taken_over(
    spark: Any, tmp_path: Path, few_partitions: None
) -> None:
    query = Query(spark, tmp_path, THREE)
    query.arrive(PERIOD + 1)
    found = query.run()
    query.check()
    assert [metrics.taken_rows for metrics in found[:PERIOD]] == [0] * PERIOD
    taken = found[PERIOD].taken_rows
    assert taken > 0
    assert found[PERIOD].copied_rows > 0
    assert found[PERIOD].rows_skew < found[PERIOD - 1].rows_skew
    hottest = found[PERIOD].hottest_keys[0]
    assert (hottest.key, hottest.spread) == (str(HOT), "b")
    explained = explain_join(query.joined(), str(tmp_path / "checkpoint"))
    assert f"hot key {HOT}: rows of b spread over buckets" in explained

    assert query.forget_last_commit() == PERIOD
    query.arrive(1)
    again = query.run()
    assert [metrics.batch_id for metrics in again] == [PERIOD, PERIOD + 1]
    assert [metrics.taken_rows for metrics in again] == [taken, 0]
    assert again[0].rows_out == found[PERIOD].rows_out
    query.check()


@pytest.mark.stress
@pytest.mark.parametrize(
    ("backend", "hot"),
    [
        ("lsm", TWO),
        pytest.param("memory", TWO, marks=pytest.mark.stress),
        pytest.param("lsm", THREE, marks=pytest.mark.stress),
    ],
)
def test_restarts_after_every_batch_and_every_batch_repeated(
    spark: Any, tmp_path: Path, few_partitions: None, backend: str, hot: dict[str, int]
) -> None:
    query = Query(spark, tmp_path, hot, backend=backend)
    for batch in range(2 * PERIOD + 1):
        query.arrive(1)
        query.run()
        assert query.forget_last_commit() == batch
        (again,) = query.run()
        assert again.batch_id == batch
    assert again.copied_rows > 0
    query.check()


@pytest.mark.stress
def test_observing_counts_and_changes_nothing(
    spark: Any, tmp_path: Path, few_partitions: None
) -> None:
    query = Query(spark, tmp_path, hot_keys="observe")
    query.arrive(1)
    first = query.run()[0]
    query.arrive(1)
    second = query.run()[0]
    query.check()
    assert not (tmp_path / "checkpoint/lsmstate/routes").exists()
    assert first.copied_rows == second.copied_rows == 0
    assert second.hottest_keys[0].key == str(HOT)
    # What was counted before the restart still counts nine tenths.
    assert 1.8 < second.watched_rows / first.watched_rows < 2.0
    assert "hot keys are counted" in explain_join(query.joined())
    with pytest.raises(InvalidArgumentError, match="skew='observe', which cannot be rescaled"):
        rescale(str(tmp_path / "checkpoint"), 2)
    query.options["skew"] = None
    with pytest.raises(Exception, match="started with skew = observe, the query now has skew"):
        query.run()


def test_what_cannot_be_spread_is_refused(spark: Any, tmp_path: Path) -> None:
    query = Query(spark, tmp_path)
    query.arrive(1)
    a, b = (stream.read(spark) for stream in query.streams.values())
    two = {"a": a, "b": b}

    def refuses(message: str, streams: Any = two, on: Any = "a.k = b.k", **options: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            multiway_join(streams, on=on, **grouped(**{"hot_keys": "spread", **options}))

    refuses("hot_keys='spraed' is unknown; did you mean 'spread'", hot_keys="spraed")
    three = {**two, "c": a}
    refuses("three or more streams needs backend='lsm'", three, ["k"], backend="memory")
    refuses("memory=5242880 is too small .* at least 6291456 bytes", three, ["k"], memory="5m")
    refuses("this join is of another type or reads a changelog", how="left", emit="changes")
    refuses(
        "has several keys", {**two, "c": b}, "a.k = b.k AND a.a_row = c.b_row", hot_keys="observe"
    )
    timed = {
        name: frame.withColumn("at", F.timestamp_seconds("k")).withWatermark("at", "1 minute")
        for name, frame in two.items()
    }
    refuses("forgets rows", timed, retention={"a": "1 hour"})
    refuses("stream 'a' has Deduplicate in its plan", {"a": a.dropDuplicates(["k"]), "b": b})
    number = F.udf(lambda: 4, "int").asNondeterministic()
    for name, value in {"uuid": F.expr("uuid()"), "rand": F.rand(1), "<lambda>": number()}.items():
        changed = a.withColumn("x", value).where("k > 0")
        refuses(
            f"stream 'a' has {name}.* AS x .*write its result to a table", {"a": changed, "b": b}
        )
    timely = {"a": a.withColumn("x", F.current_timestamp()), "b": b}
    multiway_join(timely, on=["k"], skew=Skew(hot_keys="spread"))
