"""What queries report: numbers that follow from the rows by hand, their listener, Prometheus."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest

from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.spark import (
    MetricsListener,
    PrometheusListener,
    QueryMetrics,
    QueryState,
    State,
    metrics_of,
    multiway_join,
)
from lsmstate.spark_integration.metrics.call import CallMetrics
from lsmstate.spark_integration.metrics.fan_out import PLACES, FanOut, least_rows
from lsmstate.store import StreamSchema
from support.spark_streams import FileStream

CAP = 8 << 20
KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.string())])


def test_fan_out_by_hand() -> None:
    found = FanOut()
    found.add(np.array([0, 0, 1, 2, 3, 4, 7, 8, 1 << 40]))
    found.add(np.array([], dtype=np.int64))
    assert found.matches == 25 + (1 << 40)
    assert found.keys() == [2, 1, 2, 2, 1, *[0] * (PLACES - 6), 1]
    assert [least_rows(place) for place in range(6)] == [0, 1, 2, 4, 8, 16]


@pytest.mark.parametrize("backend", ["lsm", pytest.param("memory", marks=pytest.mark.stress)])
def test_a_bucket_is_handed_over_when_another_process_served_it(
    tmp_path: Path, backend: str
) -> None:
    streams = [StreamSchema("s", KEY, ROWS)]

    def call(pointer: str | None, batch: int) -> tuple[str, CallMetrics, Any]:
        measured = CallMetrics(str(tmp_path), pointer)
        store = open_attempt(
            str(tmp_path),
            streams,
            backend=backend,
            pointer=pointer,
            batch_id=batch,
            attempt_id="a",
            options=Options(memory_bytes=CAP),
        )
        with store:
            measured.opened(store)
            keys = pa.record_batch([pa.array([batch, 7])], schema=KEY)
            store.append("s", pa.record_batch([pa.array(["x", "y"])], schema=ROWS), keys)
            store.probe("s", keys)
            return measured.commit(store), measured, measured.result(store)

    first, _, found = call(None, 0)
    assert (found.hand_overs, found.hand_over_us) == (0, 0)
    second, _, found = call(first, 1)
    assert (found.hand_overs, found.hand_over_us) == (0, 0)
    # The pointer that counts is the one of batch 0, as when batch 1 is repeated.
    _, _, found = call(first, 1)
    assert found.hand_overs == 1
    assert found.hand_over_us > 0
    assert found.probed_keys == 2
    assert found.commit_us > 0
    assert second != first


@pytest.fixture
def heard(spark: Any) -> Iterator[tuple[list[QueryMetrics], list[QueryMetrics]]]:
    """What each of two listeners is given."""
    lists: tuple[list[QueryMetrics], list[QueryMetrics]] = ([], [])
    listeners = [MetricsListener(found.append) for found in lists]
    for listener in listeners:
        spark.streams.addListener(listener)
    yield lists
    for listener in listeners:
        spark.streams.removeListener(listener)


def wait_for(what: Callable[[], object]) -> None:
    """Listeners hear of things a little later."""
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "no event came"
        time.sleep(0.02)


def keys(*values: int) -> pa.Table:
    return pa.table({"k": pa.array(values, pa.int64())})


def start(spark: Any, home: Path, name: str, buckets: int) -> Any:
    streams = {s: FileStream(home / s, "k BIGINT") for s in "ab"}
    frames = {s: stream.read(spark) for s, stream in streams.items()}
    joined = multiway_join(frames, on=["k"], state=State(buckets=buckets, memory=CAP))
    writer = joined.writeStream.format("noop").queryName(name)
    return writer.option("checkpointLocation", str(home / "checkpoint")).start()


@pytest.mark.spark
@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_two_queries_two_listeners_and_a_restart(
    spark: Any,
    tmp_path: Path,
    heard: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    restarts: bool,
) -> None:
    caplog.set_level(logging.INFO, "lsmstate")
    registry = CollectorRegistry()
    prometheus = PrometheusListener(registry)
    spark.streams.addListener(prometheus)
    one, two = tmp_path / "one", tmp_path / "two"
    for home in (one, two):
        FileStream(home / "a", "").add(keys(1, 1, 2, 3))
        FileStream(home / "b", "").add(keys(1, 1, 1, 3, 9))
    queries = [start(spark, one, "one", 1), start(spark, two, "two", 2)]
    for query in queries:
        query.processAllAvailable()
    wait_for(lambda: all(len(found) == 2 for found in heard))
    wait_for(lambda: generate_latest(registry).count(b"lsmstate_rows_in_total{") == 2)
    shown = generate_latest(registry).decode()
    last = {query.name: found for query in queries for found in reported(query)}
    for query in queries:
        wait_for(lambda query=query: state_operator(query)["numRowsTotal"] == 9)
        operator = state_operator(query)
        assert operator["numRowsUpdated"] == 9
        assert operator["memoryUsedBytes"] == last[query.name].state_memory_bytes
        disk = operator["customMetrics"]["lsmstateDiskBytes"]
        assert disk == last[query.name].state_disk_bytes
    for query in queries:
        query.stop()
    wait_for(lambda: "query=" not in generate_latest(registry).decode())

    for found in heard:
        assert {metrics.query_name: metrics for metrics in found} == last
    for metrics in last.values():
        check_first_batch(metrics)
    assert last["one"].buckets == 1
    assert (last["one"].rows_skew, last["one"].state_skew) == (1.0, 1.0)
    check_skew(last["two"], two)

    assert 'lsmstate_rows_in_total{query="one"} 9.0' in shown
    assert 'lsmstate_matches_total{query="two"} 3.0' in shown
    # 4 of 6 keys found nothing, 5 at most one row, all of them at most 3.
    for most, count in (("0.0", 4), ("1.0", 5), ("3.0", 6), ("+Inf", 6)):
        assert f'lsmstate_fan_out_bucket{{le="{most}",query="one"}} {count}.0' in shown
    written = last["one"].checkpoint_bytes
    assert f'lsmstate_checkpoint_bytes_total{{query="one"}} {float(written)}' in shown
    assert 'lsmstate_memory_limit_bytes{query="one"} 8.388608e+06' in shown
    lines = [record.getMessage() for record in caplog.records if "batch 0" in record.getMessage()]
    assert len(lines) == 4
    assert sum("query one batch 0: 9 rows in, 7 out" in line for line in lines) == 2

    if not restarts:
        spark.streams.removeListener(prometheus)
        prometheus.close()
        return
    # b has 1 and 9, so its filter is asked for each of these; all but 1 are absent.
    absent = 5
    FileStream(one / "a", "", files=1).add(keys(1, 4, 5, 6, 7, 8))
    # Workers with another environment are other processes.
    monkeypatch.setitem(spark.sparkContext.environment, "LSMSTATE_TEST", "another worker")
    query = start(spark, one, "one", 1)
    query.processAllAvailable()
    wait_for(lambda: all(len(found) == 3 for found in heard))
    wait_for(lambda: state_operator(query)["numRowsTotal"] == 9 + 6)
    query.stop()
    spark.streams.removeListener(prometheus)
    prometheus.close()
    again = heard[0][-1]
    assert (again.query_id, again.batch_id) == (last["one"].query_id, 1)
    assert (again.rows_in, again.probed_keys, again.matches, again.rows_out) == (6, 6, 3, 3)
    assert again.fan_out == (absent, 0, 1, *[0] * (PLACES - 3))
    assert again.filter_negatives + again.filter_false_positives == absent
    assert again.filter_usefulness == again.filter_negatives / absent >= 0.6
    assert again.cache_misses > 0, "the process has seen no block"
    asked = again.cache_hits + again.cache_misses
    assert again.cache_hit_rate == again.cache_hits / asked < 1
    assert again.hand_overs == again.buckets == 1
    assert 0 < again.longest_hand_over_ms <= again.hand_over_ms < again.batch_ms
    files = sum(path.stat().st_size for path in (one / "checkpoint/lsmstate").rglob("*.sst"))
    assert last["one"].spilled_bytes + again.spilled_bytes == files
    assert generate_latest(registry) == b""


def state_operator(query: Any) -> Any:
    """Spark's own figures of the operator, of the newest micro-batch with rows."""
    found = [each for each in query.recentProgress if metrics_of(each) is not None]
    (operator,) = json.loads(found[-1].json)["stateOperators"]
    return operator


def reported(query: Any) -> list[QueryMetrics]:
    """Of its micro-batches: a trigger without new data has a progress too."""
    return [found for found in map(metrics_of, query.recentProgress) if found is not None]


def check_first_batch(metrics: QueryMetrics) -> None:
    """a: 1 1 2 3 finds nothing in b. b: 1 1 1 3 9 finds two rows, one, and none in a."""
    assert (metrics.batch_id, metrics.rows_in, metrics.rows_out) == (0, 9, 2 * 3 + 1)
    assert (metrics.probed_keys, metrics.matches) == (6, 3)
    assert metrics.fan_out == (4, 1, 1, *[0] * (PLACES - 3))
    assert metrics.matches_per_key == 0.5
    assert metrics.hand_overs == 0
    assert metrics.memory_limit_bytes == CAP
    assert 0 < metrics.peak_state_bytes <= CAP
    assert 0 < metrics.memory_use <= 1
    assert metrics.memory_bytes["memtable"] > 0
    assert max(metrics.memory_bytes.values()) <= metrics.state_memory_bytes
    assert metrics.checkpoint_bytes == metrics.spilled_bytes == metrics.state_disk_bytes > 0
    assert (metrics.merged_bytes, metrics.write_amplification) == (0, 1.0)
    assert metrics.checkpoint_ms > 0
    assert metrics.batch_ms > 0


def check_skew(metrics: QueryMetrics, home: Path) -> None:
    state = QueryState.open(str(home / "checkpoint"), 0)
    streams = [state.stream(name) for name in "ab"]
    rows = [
        sum(piece.num_rows for stream in streams for piece in state.rows(bucket, stream))
        for bucket in state.pointers
    ]
    assert (sum(rows), len(rows)) == (metrics.rows_in, metrics.buckets)
    assert metrics.largest_bucket_rows_in == max(rows)
    assert metrics.rows_skew == max(rows) / (sum(rows) / len(rows))


@pytest.mark.spark
def test_other_queries_are_left_alone(spark: Any, tmp_path: Path, heard: Any) -> None:
    FileStream(tmp_path / "a", "k BIGINT").add(keys(1))
    frame = FileStream(tmp_path / "a", "k BIGINT").read(spark)
    query = frame.writeStream.format("noop").start()
    query.processAllAvailable()
    assert metrics_of(query.lastProgress) is None
    query.stop()
    assert heard == ([], [])
