"""A query that stops, is killed or changes its workers continues exactly where Spark committed."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from lsmstate.spark import State, multiway_join
from lsmstate.spark_integration.catalyst.refusal import refuse
from support.grouped import grouped
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    committed,
    pieces,
    run_to_end,
)

pytestmark = pytest.mark.spark

NAMES = ("a", "b", "c")
FILES = 4


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Three streams of four files, in which a key's rows lie in different files."""
    found = {}
    for seed, name in enumerate(NAMES):
        rows = 120
        table = pa.table(
            {
                f"{name}_k": pa.array([(i * 13 + seed) % 40 for i in range(rows)], pa.int64()),
                f"{name}_text": pa.array([f"{name}{i}" for i in range(rows)]),
            }
        )
        stream = FileStream(tmp_path / name, f"{name}_k BIGINT, {name}_text STRING")
        found[name] = stream.add(*pieces(table, FILES))
    return found


def join_of(spark: Any, streams: dict[str, FileStream], **options: Any) -> Any:
    return multiway_join(
        {name: stream.read(spark) for name, stream in streams.items()},
        on="a.a_k = b.b_k AND a.a_k = c.c_k",
        **grouped(memory="16m", backend=BACKEND, **options),
    )


def expected(streams: dict[str, FileStream]) -> str:
    a, b, c = (stream.sql for stream in streams.values())
    return f"SELECT * FROM {a} JOIN {b} ON a_k = b_k JOIN {c} ON a_k = c_k"


def start(joined: Any, home: Path) -> Any:
    return (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .start(str(home / "out"))
    )


def wait_for_batch(query: Any, number: int) -> None:
    deadline = time.monotonic() + 90
    while (query.lastProgress or {"batchId": -1})["batchId"] < number:
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "no progress for 90 seconds"
        time.sleep(0.05)


@pytest.fixture
def shuffle_partitions(spark: Any) -> Iterator[Any]:
    """Change the session's number of partitions for one test."""
    name = "spark.sql.shuffle.partitions"
    yield lambda count: spark.conf.set(name, count)
    spark.conf.unset(name)


@pytest.mark.stress
def test_stopped_and_restarted_with_other_partitions(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream], shuffle_partitions: Any
) -> None:
    shuffle_partitions(3)
    query = start(join_of(spark, streams), tmp_path)
    wait_for_batch(query, 1)
    query.stop()
    first = committed(tmp_path / "out")
    assert first, "nothing was written before the stop"
    shuffle_partitions(5)
    second = run_to_end(join_of(spark, streams), tmp_path / "checkpoint", tmp_path / "out")
    assert 0 < len(second.recentProgress) < FILES
    assert {
        operator["numShufflePartitions"]
        for progress in second.recentProgress
        for operator in progress["stateOperators"]
    } == {3}
    assert_same_rows(expected(streams), committed(tmp_path / "out"), at_least=500)


def state_workers() -> list[int]:
    """Python workers of this user that hold state, found by their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            is_forked = command == (Path("/proc") / str(parent) / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked
        if b"LSMSTATE_WORKER=state" in environment and is_forked and is_ours(int(entry.name)):
            found.append(int(entry.name))
    return found


def is_ours(process: int) -> bool:
    """Whether the process descends from this one: other sessions' workers are none of ours."""
    while process > 1:
        if process == os.getpid():
            return True
        try:
            stat = (Path("/proc") / str(process) / "stat").read_text()
        except OSError:
            return False
        process = int(stat.rsplit(")", 1)[1].split()[1])
    return False


def test_killed_workers_lose_nothing_and_repeat_nothing(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream]
) -> None:
    killed = failures = 0
    deadline = time.monotonic() + 120
    while killed < 3:
        query = start(join_of(spark, streams), tmp_path)
        while query.isActive and killed < 3:
            assert time.monotonic() < deadline, f"killed only {killed} workers in two minutes"
            for worker in state_workers():
                os.kill(worker, signal.SIGKILL)
                killed += 1
            time.sleep(0.4)
        if query.exception() is None:
            query.stop()
        else:
            failures += 1
    run_to_end(join_of(spark, streams), tmp_path / "checkpoint", tmp_path / "out")
    assert_same_rows(expected(streams), committed(tmp_path / "out"), at_least=500)


@pytest.mark.stress
@pytest.mark.parametrize("failures", [{2: 1}, {1: 2, 3: 1}], ids=str)
def test_a_task_that_dies_in_mid_batch_is_repeated_from_its_pointer(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream], failures: dict[int, int]
) -> None:
    """The sink fails after the operator has run and sealed its files for the batch."""
    out: list[Any] = []
    failing = {**failures}

    def write(batch: Any, number: int) -> None:
        rows = batch.collect()
        if failing.get(number, 0):
            failing[number] -= 1
            raise RuntimeError("the sink is away")
        out.extend(rows)

    attempts = 0
    while True:
        query = (
            join_of(spark, streams)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        attempts += 1
        try:
            query.awaitTermination()
            break
        except StreamingQueryException:
            assert attempts < 6
    assert attempts == 1 + sum(failures.values())
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row.asDict() for row in out]), path)
    assert_same_rows(expected(streams), [str(path)], at_least=500)


@pytest.fixture(scope="module")
def started(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query that has run to its end: its streams ``a``, ``b``, ``c``, checkpoint and result."""
    home = tmp_path_factory.mktemp("started")
    columns = {"k": pa.array([1, 2], pa.int64()), "other": pa.array([1, 2], pa.int64())}
    for name in NAMES:
        FileStream(home / name, KEYS_AND_OTHER).add(pa.table(columns))
    run_to_end(
        multiway_join(read(spark, home), on=["k"], state=State(buckets=4)),
        home / "checkpoint",
        home / "out",
    )
    return home


KEYS_AND_OTHER = "k BIGINT, other BIGINT"


def read(
    spark: Any, home: Path, names: str = "abc", schema: str = KEYS_AND_OTHER
) -> dict[str, Any]:
    return {n: FileStream(home / n.lower(), schema).read(spark) for n in names}


@pytest.mark.parametrize(
    ("inputs", "options", "was", "now"),
    [
        ({}, {"on": ["other"]}, "condition = a.k = b.k = c.k", "a.other = b.other = c.other"),
        ({"names": "acb"}, {}, "streams = (a, b, c)", "(a, c, b)"),
        ({"schema": "k INT, other BIGINT"}, {}, "key types = (int64)", "(int32)"),
        ({}, {"buckets": 5}, "buckets = 4", "buckets = 5"),
        *(
            pytest.param(*each, marks=pytest.mark.stress)
            for each in (
                ({"names": "abC"}, {}, "streams = (a, b, c)", "(a, b, C)"),
                ({"names": "ab"}, {}, "streams = (a, b, c)", "(a, b)"),
                ({"schema": "k BIGINT"}, {}, "columns of a = (k int64, other int64)", "(k int64)"),
                ({}, {"backend": "memory"}, "backend = lsm", "backend = memory"),
            )
        ),
    ],
)
def test_a_restart_with_another_join_ends_at_its_start(
    spark: Any, started: Path, inputs: dict[str, str], options: dict[str, Any], was: str, now: str
) -> None:
    """No data arrives, so Spark never plans a batch of it; nor is anything written."""
    before = files_below(started)
    query = start(
        multiway_join(read(spark, started, **inputs), **grouped(**{"on": ["k"], **options})),
        started,
    )
    assert not query.isActive
    said = str(query.exception())
    assert f"this checkpoint was started with {was}" in said
    assert now in said
    with pytest.raises(StreamingQueryException) as refusal:
        query.awaitTermination(60)
    assert was in str(refusal.value)
    assert files_below(started) == before


@pytest.mark.stress
def test_conditions_beside_the_keys_and_pins_are_fixed_by_the_first_start(
    spark: Any, tmp_path: Path
) -> None:
    """Else what came before would be by one condition, and what comes by another."""
    columns = "k BIGINT, at TIMESTAMP_NTZ"
    for name in "ab":
        FileStream(tmp_path / name, columns).add(pa.table({"k": [1], "at": [datetime(2026, 1, 1)]}))

    def joined(*conditions: str, **pins: str) -> Any:
        on = " AND ".join(["a.k = b.k", *conditions])
        streams = read(spark, tmp_path, "ab", columns)
        return multiway_join(streams, on=on, pins=pins, state=State(buckets=2, backend=BACKEND))

    kept = ("a.k + b.k < 9", "b.at <= a.at + INTERVAL 1 HOUR")
    run_to_end(joined(*kept, rates="1"), tmp_path / "checkpoint", tmp_path / "out")
    for again, words in (
        (joined(kept[0], rates="1"), r"other conditions = \(b.at <= .*, a.k \+ b.k < 9\), .* now "),
        (joined(kept[1], "a.k < 8", rates="1"), r"now has other conditions = \(.*, a.k < 8\)"),
        (joined(*kept, rates="2"), "rates = 1, the query now has rates = 2"),
        (joined(*kept), "rates = 1, the query now has rates = nothing"),
    ):
        with pytest.raises(StreamingQueryException, match=words):
            run_to_end(again, tmp_path / "checkpoint", tmp_path / "out")
    other_order = ("a.at + INTERVAL '60' MINUTES >= b.at", kept[0])
    run_to_end(joined(*other_order, rates="1"), tmp_path / "checkpoint", tmp_path / "out")


def files_below(home: Path) -> dict[str, int]:
    """Without the metrics, which a query that has ended may still write."""
    paths = (path for path in home.rglob("*") if path.name != "metrics.jsonl")
    return {str(path): path.stat().st_mtime_ns for path in paths}


@pytest.mark.stress
def test_after_refusals_the_right_query_goes_on(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"k": pa.array([1, 2], pa.int64())})
    streams = {name: FileStream(tmp_path / name, "k BIGINT").add(rows) for name in "ab"}

    def joined(**options: Any) -> Any:
        frames = {name: stream.read(spark) for name, stream in streams.items()}
        return multiway_join(frames, on=["k"], **grouped(backend=BACKEND, **options))

    run_to_end(joined(buckets=4), tmp_path / "checkpoint", tmp_path / "out")
    streams["a"].add(rows)
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=r"buckets = 4, .* has buckets = 5"):
            run_to_end(joined(buckets=5), tmp_path / "checkpoint", tmp_path / "out")
    assert "is refused: this checkpoint was started with buckets = 4" in caplog.text
    run_to_end(joined(), tmp_path / "checkpoint", tmp_path / "out")
    sql = f"SELECT a.k, b.k FROM {streams['a'].sql} a JOIN {streams['b'].sql} b USING (k)"
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=4)


@pytest.mark.stress
def test_a_spark_whose_queries_cannot_be_ended_fails_the_first_task(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release that keeps the fields elsewhere: refuse() finds none, the workers have the text."""
    assert not refuse(spark._jvm.java.lang.Object(), spark._jvm, "because")
    monkeypatch.setattr(
        "lsmstate.spark_integration.stateful_operator.query_start.refuse",
        lambda query, jvm, sentence: False,
    )
    rows = pa.table({"k": pa.array([1, 2], pa.int64())})
    streams = {name: FileStream(tmp_path / name, "k BIGINT").add(rows) for name in "ab"}
    frames = {name: stream.read(spark) for name, stream in streams.items()}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "lsmstate").write_text("in the way")
    with pytest.raises(StreamingQueryException, match=r"state directory .* cannot be written to"):
        run_to_end(multiway_join(frames, on=["k"]), tmp_path / "checkpoint", tmp_path / "out")
    assert "will fail at its first data: the state directory" in caplog.text
