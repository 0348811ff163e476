"""The main job from a real Kafka broker: started, used, checked and stopped by the command.

Slow, so what starts a broker runs in ``make stress``. The only reason to skip is that Maven
Central, or what Spark is set up to use in its place, cannot be reached.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")

import pyspark

from lsmstate.spark_integration.demo import kafka_broker
from lsmstate.spark_integration.demo.kafka_broker import (
    KafkaError,
    PackageUnavailableError,
    running_broker,
)
from lsmstate.spark_integration.demo.ports import free_ports
from support.paths import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

#: A small package that Maven Central, and whatever stands in its place, surely has.
SMALL_PACKAGE = "org.slf4j:slf4j-api:2.0.16"


def start(run: Path) -> "subprocess.Popen[str]":
    arguments = ["--kafka", "--scale", "0.01", "--batches", "3", "--memory", "6m", "--json"]
    arguments += ["--data", str(ROOT / ".data"), "--run", str(run)]
    return subprocess.Popen(
        [sys.executable, "-m", "lsmstate", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_of(run: Path) -> list[int]:
    """Processes that were started for a run and still live."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(run) in " ".join(process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def wait_until_gone(run: Path) -> None:
    deadline = time.monotonic() + 60
    while left_of(run):
        assert time.monotonic() < deadline, f"processes {left_of(run)} were left"
        time.sleep(0.2)


def maven_answers(home: Path) -> bool:
    """Whether Spark's own client can fetch anything at all."""
    spark = Path(pyspark.__file__).parent
    arguments = ["--master", "local[1]", "--conf", f"spark.jars.ivy={home}"]
    arguments += ["--packages", SMALL_PACKAGE, "--class", "none", "spark-internal"]
    told = subprocess.run(
        [str(spark / "bin" / "spark-submit"), *arguments],
        env={**os.environ, "SPARK_HOME": str(spark)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return "unresolved dependency" not in told.stdout + told.stderr


def skip_without_maven(told: str, home: Path) -> None:
    """Packages that a reachable Maven Central does not give are a failure."""
    if "could not be fetched" in told and not maven_answers(home):
        pytest.skip(f"Maven Central cannot be reached: {told.strip().splitlines()[-1]}")


@pytest.mark.stress
def test_the_main_job_from_kafka_ends_as_duckdb_says(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run)
    said, told = process.communicate()
    skip_without_maven(told, tmp_path)
    assert process.returncode == 0, told
    found = json.loads(said.splitlines()[-1])
    assert found["equal"] is True
    assert found["output_rows"] == found["expected_rows"] > 10_000
    assert found["input_rows"] == 5_847
    assert found["batches"] >= 3
    assert (run / "kafka" / "data" / "store_returns-0").is_dir(), "it did not come from Kafka"
    wait_until_gone(run)


@pytest.mark.stress
def test_interrupted_it_stops_what_it_started(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run)
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if "starting Spark" in line:
            break
    skip_without_maven("".join(told), tmp_path)
    assert len(left_of(run)) >= 2, f"no broker runs: {told}"
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    wait_until_gone(run)


@pytest.mark.stress
def test_without_the_package_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own settings say where packages come from; here from a directory that is empty."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers>'
        "</ivysettings>"
    )
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text(f"spark.jars.ivySettings {settings}\nspark.jars.ivy {tmp_path}/cache\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with (
        pytest.raises(PackageUnavailableError, match="could not be fetched"),
        running_broker(tmp_path / "kafka"),
    ):
        pytest.fail("a broker runs without its package")
    assert not maven_answers(tmp_path / "ivy")
    wait_until_gone(tmp_path / "kafka")


@pytest.mark.stress
def test_a_port_that_is_taken_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        first = iter([[*free_ports(1), taken.getsockname()[1]]])
        monkeypatch.setattr(
            kafka_broker, "free_ports", lambda count: next(first, None) or free_ports(count)
        )
        try:
            with running_broker(tmp_path / "kafka") as address:
                host, port = address.split(":")
                socket.create_connection((host, int(port)), timeout=60).close()
        except PackageUnavailableError as error:
            skip_without_maven(str(error), tmp_path)
            raise
    assert "Address already in use" in (tmp_path / "kafka" / "kafka.log").read_text()
    wait_until_gone(tmp_path / "kafka")


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        ("INFO a\njava.net.BindException: in use\nINFO b\n", KafkaError, "BindException: in use"),
        ("no memory\n", KafkaError, "no memory"),
        ("", KafkaError, "said nothing"),
        ("java.lang.RuntimeException: [download failed: a#b]\n", PackageUnavailableError, "a#b"),
        ("RuntimeException: [unresolved dependency: c#d]\n", PackageUnavailableError, "c#d"),
    ],
)
def test_an_error_says_what_the_broker_said(
    tmp_path: Path, said: str, kind: type[Exception], reason: str
) -> None:
    log = tmp_path / "kafka.log"
    log.write_text(said)
    found = kafka_broker._failure(log)
    assert type(found) is kind
    assert reason in str(found)
    assert str(log) in str(found)
