"""A query that stops, is killed or changes its workers continues exactly where Spark committed."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from spark_streams import BACKEND, FileStream, assert_same_rows, committed, pieces, run_to_end

from lsmstate.spark import multiway_join

pytestmark = pytest.mark.spark

NAMES = ("a", "b", "c")
FILES = 6


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    """Three streams of six files, in which a key's rows lie in different files."""
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
        memory="16m",
        backend=BACKEND,
        **options,
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


def test_a_task_that_dies_in_mid_batch_is_repeated_from_its_pointer(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream]
) -> None:
    """The sink fails after the operator has run and sealed its files for the batch."""
    out: list[Any] = []
    failing = {2: 2, 4: 1}

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
    assert attempts == 4
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row.asDict() for row in out]), path)
    assert_same_rows(expected(streams), [str(path)], at_least=500)


def test_a_restart_with_another_join_is_refused(
    spark: Any,
    tmp_path: Path,
    streams: dict[str, FileStream],
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = streams
    one = {
        name: FileStream(tmp_path / "first" / name, stream.schema) for name, stream in whole.items()
    }

    def arrive(file: int) -> None:
        for name, stream in one.items():
            stream.add(pq.read_table(whole[name].directory / f"{file:04d}.parquet"))

    arrive(0)
    run_to_end(join_of(spark, one), tmp_path / "checkpoint", tmp_path / "out")
    # Without new data Spark starts no task that could fail; the log says it at once.
    run_to_end(join_of(spark, one, buckets=5), tmp_path / "checkpoint", tmp_path / "out")
    assert "will fail at its first data: this checkpoint was started with buckets" in caplog.text
    arrive(1)

    def refused(joined: Any) -> str:
        with pytest.raises(StreamingQueryException) as refusal:
            run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
        return str(refusal.value)

    frames = {name: stream.read(spark) for name, stream in one.items()}
    other_condition = {"a": ["a_text"], "b": ["b_text"], "c": ["c_text"]}
    said = refused(multiway_join(frames, on=other_condition, backend=BACKEND))
    assert "condition = a.a_k = b.b_k = c.c_k" in said
    assert "a.a_text = b.b_text = c.c_text" in said
    said = refused(join_of(spark, one, buckets=7))
    assert "buckets = 4" in said
    assert "buckets = 7" in said
    run_to_end(join_of(spark, one), tmp_path / "checkpoint", tmp_path / "out")
    assert_same_rows(expected(one), committed(tmp_path / "out"), at_least=10)
