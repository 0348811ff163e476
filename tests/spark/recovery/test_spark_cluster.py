"""A cluster of processes, one machine of which is slow: Spark starts its tasks anew on the other.

Both attempts of a task then work from one commit pointer, on one bucket, at the same time; one of
them is killed by Spark, wherever it is. Slow, so it runs in ``make stress``.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyarrow.fs import S3FileSystem

from support.killed_sessions import DRIVER, check_result, last_commit, let_arrive
from support.s3_server import s3_server, storage_options
from support.spark_cluster import executors_of, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.stress, pytest.mark.timeout(1800)]

FILES = 12
#: The second machine's disk: milliseconds an operation, of which a bucket's commit takes some ten.
#: With 120 Spark speculated twice only while other processes kept the first machine busy as well.
SLOW = {"LSMSTATE_FAULT": "slow 400", "LSMSTATE_FAULT_MARK": "/nowhere"}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "20ms",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def start(home: Path, master: str, **join: Any) -> "subprocess.Popen[bytes]":
    """The query of kill_driver.py on the cluster, one file of each stream a micro-batch."""
    (home / "events").mkdir(exist_ok=True)
    settings = {**SPECULATION, "spark.eventLog.dir": f"file:{home / 'events'}"}
    wanted = {"master": master, "settings": settings, "join": {"buckets": 4, **join}}
    environment = {"LSMSTATE_PROVIDER": "hdfs", "LSMSTATE_DRIVER": json.dumps(wanted)}
    with (home / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, DRIVER, str(home), "1"],
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
        )


def finish(process: "subprocess.Popen[bytes]", home: Path) -> None:
    assert process.wait(1200) == 0, (home / "driver.log").read_text()[-3000:]


def events(home: Path, kind: str) -> Iterator[dict[str, Any]]:
    for path in (home / "events").rglob("app-*"):
        if path.is_file():
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == kind:
                    yield event


def speculative(home: Path) -> dict[str, int]:
    """How the speculative copies of tasks that hold state ended: Success, TaskKilled."""
    stateful = {
        event["Stage Info"]["Stage ID"]
        for event in events(home, "SparkListenerStageCompleted")
        if "InPandasWithState" in json.dumps(event)
    }
    ends: dict[str, int] = defaultdict(int)
    for event in events(home, "SparkListenerTaskEnd"):
        if event["Task Info"]["Speculative"] and event["Stage ID"] in stateful:
            ends[event["Task End Reason"]["Reason"]] += 1
    return dict(ends)


def test_speculative_attempts_lose_and_double_nothing(tmp_path: Path) -> None:
    let_arrive(tmp_path, random.Random(11), FILES)
    with spark_cluster(tmp_path / "cluster", [{}, SLOW]) as master:
        finish(start(tmp_path, master), tmp_path)
    ends = speculative(tmp_path)
    print(f"speculative tasks: {ends}")
    assert sum(ends.values()) >= 3, "Spark speculated too little to show anything"
    assert last_commit(tmp_path) == FILES - 1
    assert check_result(tmp_path) > 100


def test_state_on_s3_while_machines_are_slow_and_lost(tmp_path: Path) -> None:
    let_arrive(tmp_path, random.Random(12), FILES)
    with s3_server() as server:
        options = storage_options(server)
        S3FileSystem(**options, allow_bucket_creation=True).create_dir("states")
        with spark_cluster(tmp_path / "cluster", [{}, SLOW]) as master:
            place = {"state_dir": "s3://states/query", "storage_options": options}
            process = start(tmp_path, master, **place)
            while last_commit(tmp_path) < FILES // 2:
                assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
                time.sleep(0.1)
            (lost,) = executors_of(tmp_path / "cluster", 1)
            lost.kill()
            finish(process, tmp_path)
    ends = speculative(tmp_path)
    gone = [e["Removed Reason"] for e in events(tmp_path, "SparkListenerExecutorRemoved")]
    print(f"speculative tasks: {ends}; executors lost: {gone}")
    assert ends, "Spark speculated nothing"
    assert gone, "no machine was lost"
    assert check_result(tmp_path) > 100
