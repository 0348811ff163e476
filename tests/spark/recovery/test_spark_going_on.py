"""A query that goes on with other options, from an older micro-batch, or under an odd reader."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from lsmstate.spark import multiway_join
from support.grouped import grouped
from support.spark_streams import FileStream, assert_same_rows, metric, pieces

pytestmark = pytest.mark.spark

NAMES = ("a", "b")
FILES = 4
ROWS = 240


class Query:
    """Two streams of four files, joined; every batch is kept by number, as a sink would."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.spark, self.home = spark, home
        self.streams: dict[str, FileStream] = {}
        self.batches: dict[int, list[Any]] = {}
        for seed, name in enumerate(NAMES):
            keys = pa.array([(i * 13 + seed) % 50 for i in range(ROWS)], pa.int64())
            texts = pa.array([f"{name}{i}" for i in range(ROWS)])
            table = pa.table({f"{name}_k": keys, f"{name}_text": texts})
            stream = FileStream(home / name, f"{name}_k BIGINT, {name}_text STRING")
            self.streams[name] = stream.add(*pieces(table, FILES))

    def join(self, **options: Any) -> Any:
        frames = {name: stream.read(self.spark) for name, stream in self.streams.items()}
        return multiway_join(frames, on="a.a_k = b.b_k", **grouped(buckets=4, **options))

    def start(self, joined: Any, write: Any = None) -> Any:
        def keep(batch: Any, number: int) -> None:
            self.batches[number] = batch.collect()

        writer = joined.writeStream.foreachBatch(write or keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.home / "checkpoint")).start()
        query.awaitTermination()
        return query

    def set_back_to(self, number: int) -> None:
        """As docs/guide/operations.md says: what Spark keeps of later micro-batches is deleted."""
        checkpoint = self.home / "checkpoint"
        newest = {"offsets": number, "commits": number, "state": number + 1}
        later = [
            path
            for log, last in newest.items()
            for path in (checkpoint / log).rglob("*")
            if path.is_file() and number_of(path) > last
        ]
        assert {path.relative_to(checkpoint).parts[0] for path in later} == set(newest)
        for path in later:
            path.unlink()
        for number_ in [n for n in self.batches if n > number]:
            del self.batches[number_]

    def check(self) -> None:
        rows = [row.asDict() for batch in self.batches.values() for row in batch]
        path = self.home / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        a, b = (stream.sql for stream in self.streams.values())
        assert_same_rows(f"SELECT * FROM {a} JOIN {b} ON a_k = b_k", [str(path)], at_least=500)


def number_of(path: Path) -> int:
    """Which micro-batch or version Spark names a file after (``3``, ``.3.crc``, ``3.delta``,
    ``3.zip``); else -1. What lies in ``SSTs`` has numbers of RocksDB's."""
    found = re.match(r"\.?(\d+)\b", path.name)
    return int(found[1]) if found and path.parent.name != "SSTs" else -1


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


@pytest.mark.stress
def test_every_start_may_have_other_options(query: Query) -> None:
    files = {name: sorted(s.directory.iterdir()) for name, s in query.streams.items()}
    away = query.home / "away"
    away.mkdir()
    for paths in files.values():
        for path in paths[2:]:
            shutil.move(path, away / (path.parent.name + path.name))
    starts: list[dict[str, Any]] = [
        {"options": {"compression": "zstd", "bottom_compression": "none", "fanout": 2}},
        {"memory": "5m", "options": {"block_bytes": 1024, "merging": "tiered", "sync": "commit"}},
        {},
    ]
    query.start(query.join(**starts[0]))
    for place, options in enumerate(starts[1:], 2):
        for name, paths in files.items():
            shutil.move(away / (name + paths[place].name), paths[place])
        query.start(query.join(**options))
    assert sorted(query.batches) == list(range(FILES))
    query.check()


def test_set_back_to_an_older_batch(query: Query) -> None:
    """The second time the files come in one batch."""
    query.start(query.join())
    assert sorted(query.batches) == list(range(FILES))
    query.set_back_to(1)
    query.start(query.join())
    assert sorted(query.batches) == [0, 1, 2]
    query.check()


@pytest.mark.stress
def test_set_back_twice(query: Query) -> None:
    """Between, more files arrive."""
    test_set_back_to_an_older_batch(query)
    for name, stream in query.streams.items():
        rows = {f"{name}_k": pa.array(range(10), pa.int64()), f"{name}_text": [name] * 10}
        stream.add(pa.table(rows))
    query.start(query.join())
    query.check()
    query.set_back_to(0)
    query.start(query.join())
    query.check()


@pytest.mark.stress
def test_a_batch_read_in_part_is_the_end_until_it_is_set_back(query: Query) -> None:
    """Spark names batch 1 committed, though not all of its state was handed over: what comes after
    it is refused again and again, and nothing of it is written; set back, the query is exact."""

    def take_of_1(batch: Any, number: int) -> None:
        query.batches[number] = batch.take(1) if number == 1 else batch.collect()

    with pytest.raises(StreamingQueryException):
        query.start(query.join(), take_of_1)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="CANNOT_LOAD_STATE_STORE"):
            query.start(query.join())
        assert sorted(query.batches) == [0, 1]
    query.set_back_to(0)
    query.start(query.join())
    assert sorted(query.batches)[:2] == [0, 1]
    query.check()


@pytest.mark.stress
def test_a_limit_above_the_join_reads_every_batch_to_its_end(query: Query) -> None:
    """Spark's own limit of a stream goes on reading when it has enough rows: nothing is lost."""
    ran = query.start(query.join().limit(7))
    assert sum(len(batch) for batch in query.batches.values()) == 7
    assert sum(metric(ran, "rows_in")) == len(NAMES) * ROWS
    commits = query.home / "checkpoint" / "commits"
    assert json.loads((commits / str(FILES - 1)).read_text().splitlines()[1])


@pytest.fixture
def rocksdb_states(spark: Any) -> Iterator[None]:
    """Spark's other provider of its own states, which hold our pointers."""
    settings = {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name in settings:
        spark.conf.unset(name)


def read_twice(query: Query) -> Any:
    def write(batch: Any, number: int) -> None:
        first = batch.collect()
        query.batches[number] = batch.collect()
        assert sorted(map(str, first)) == sorted(map(str, query.batches[number]))

    return write


@pytest.mark.stress
def test_two_actions_on_every_batch_and_restarts_in_between(query: Query) -> None:
    """Each runs the operator; the pointer that a restart finds is the second one's."""
    query.start(query.join(), read_twice(query))
    query.set_back_to(1)
    query.start(query.join(), read_twice(query))
    query.check()


@pytest.mark.stress
@pytest.mark.usefixtures("rocksdb_states")
@pytest.mark.parametrize(
    "test",
    [
        test_two_actions_on_every_batch_and_restarts_in_between,
        test_set_back_twice,
        test_a_batch_read_in_part_is_the_end_until_it_is_set_back,
    ],
)
def test_the_same_with_sparks_rocksdb_provider(test: Callable[[Query], None], query: Query) -> None:
    test(query)
