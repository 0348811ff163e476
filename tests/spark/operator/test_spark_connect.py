"""The join under Spark Connect: a server of its own, and a client in a process without a JVM."""

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

import pyspark

from lsmstate.spark_integration.demo.ports import free_ports
from support.connect_driver import SCHEMA, SQL
from support.paths import ROOT, SUPPORT, TESTS
from support.spark_streams import FileStream, assert_same_rows, committed

pytestmark = pytest.mark.spark

PARTITIONS = 3


class Session(NamedTuple):
    home: Path
    seen: dict[str, str]
    """Per step of the client, the error it got."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return session_of("joins", tmp_path_factory.mktemp("connect"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """With a server of its own: other modes, functions of the user's, SQL."""
    return session_of("others", tmp_path_factory.mktemp("connect"))


def session_of(part: str, home: Path) -> Session:
    for name in "ab":
        FileStream(home / name, SCHEMA).add(
            pa.concat_tables([rows(range(20)), rows(range(10, 30))])
        )
    with connect_server(home) as url:
        driver = str(SUPPORT / "connect_driver.py")
        client = subprocess.run(
            [sys.executable, driver, str(home), url, part],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert client.returncode == 0, client.stderr[-3000:]
    return Session(home, json.loads(client.stdout.splitlines()[-1]))


def rows(keys: range) -> pa.Table:
    first = datetime.date(2024, 1, 1)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "day": [first + datetime.timedelta(days=k) for k in keys],
            "price": pa.array([Decimal(k) / 100 for k in keys], pa.decimal128(9, 2)),
        }
    )


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}


@contextmanager
def connect_server(home: Path) -> Iterator[str]:
    """A server in a process of its own; yields its address."""
    (port,) = free_ports(1)
    settings: dict[str, Any] = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": home / "local",
        # As conftest has it: a worker is a fork, and imports nothing anew.
        "spark.python.daemon.module": "lsmstate.spark_integration.daemon",
        "spark.sql.shuffle.partitions": PARTITIONS,
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    log = home / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=home,
            env=environment(),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def wait_for(port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)


def test_the_result_is_right_over_a_restart(session: Session) -> None:
    assert session.seen["first run"] == session.seen["second run"] == "no error"
    assert_joined(session.home, "checkpoint-out")


def assert_joined(home: Path, out: str) -> None:
    a, b = files_of(home)
    query = (
        "SELECT a.k AS a_k, a.day AS a_day, a.price AS a_price, b.k AS b_k, b.day AS b_day, "
        f"b.price AS b_price FROM {a} a JOIN {b} b USING (k)"
    )
    assert_same_rows(query, committed(home / out), at_least=55)


def files_of(home: Path) -> list[str]:
    return [f"read_parquet('{home}/{name}/*', union_by_name=true)" for name in "ab"]


@pytest.mark.stress
def test_the_result_is_right_in_the_right_mode_after_wrong_ones(others: Session) -> None:
    assert others.seen["right mode"] == "no error"
    assert_joined(others.home, "checkpoint-of-modes-out")


@pytest.mark.stress
def test_a_function_of_the_clients_own(others: Session) -> None:
    assert others.seen["stateful"] == "no error"
    a, b = files_of(others.home)
    keys = f"SELECT k FROM {a} UNION ALL SELECT k FROM {b}"
    assert_same_rows(keys, committed(others.home / "stateful-out"), at_least=84)


@pytest.mark.stress
def test_sql_runs_as_spark_runs_it(others: Session) -> None:
    assert others.seen["sql"] == "no error"
    for note in ("note of sql", "note of a frame"):
        assert "Spark Connect does not expose query plans" in others.seen[note]
        assert "multiway_join(" in others.seen[note]
    a, b = files_of(others.home)
    expected = SQL.replace("FROM a JOIN b", f"FROM {a} a JOIN {b} b")
    assert_same_rows(expected, committed(others.home / "sql-out"), at_least=30)


def test_buckets_are_spread_over_the_servers_partitions(session: Session) -> None:
    settings = json.loads((session.home / "state" / "query.json").read_text())["settings"]
    assert settings["partitions"] == PARTITIONS


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            "no state_dir",
            ["InvalidArgumentError", "Spark Connect", "multiway_join(..., state=State("],
        ),
        ("strict sql", ["InvalidArgumentError", "strict=True", "multiway_join("]),
        ("own column", ["AnalysisException", "CANNOT_RESOLVE_DATAFRAME_COLUMN"]),
        ("used twice", ["AnalysisException", "multiway_join_may_stand_once_in_a_query"]),
        ("another join", ["InvalidArgumentError", "condition = a.k = b.k", "a.day = b.day"]),
        ("another query", ["StreamingQueryException", "give each query a state_dir of its own"]),
        ("lost state", ["StreamingQueryException", "its state is not in", "/nowhere"]),
    ],
)
def test_what_cannot_work_is_refused(session: Session, step: str, words: list[str]) -> None:
    for word in words:
        assert word in session.seen[step]


@pytest.mark.stress
@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("results without bound", ["maxRecordsPerBatch=0", "set it to 10000"]),
        ("async progress tracking", ["StreamingQueryException", "async progress tracking"]),
        ("real-time mode", ["STREAMING_REAL_TIME_MODE"]),
        ("staged sql", ["InvalidArgumentError", "staged mode"]),
    ],
)
def test_modes_that_cannot_work_are_refused(others: Session, step: str, words: list[str]) -> None:
    for word in words:
        assert word in others.seen[step]
