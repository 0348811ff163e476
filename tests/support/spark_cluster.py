"""A real cluster on one machine: a master and workers as processes, made by Spark's own classes.

Each worker has an address of its own in 127.0.0.0/8. Spark takes them for machines: it starts no
speculative copy of a task on the machine that runs it already, so ``local-cluster``, whose workers
all have one name, never speculates.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil

from lsmstate.spark_integration.demo.ports import free_ports
from support.paths import ROOT, TESTS

_DEPLOY = "org.apache.spark.deploy"
_START_SECONDS = 180


@contextmanager
def spark_cluster(home: Path, machines: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The address of a master with one worker of one core for each of ``machines``, which are the
    environments that their executors, and the Python workers of those, get on top."""
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    ports = free_ports(2)
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, main: str, more: Mapping[str, str], *arguments: str) -> None:
        command = [str(spark_home / "bin" / "spark-class"), f"{_DEPLOY}.{main}", *arguments]
        with (home / f"{name}.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    command,
                    env={**environment, **more},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    home.mkdir(parents=True, exist_ok=True)
    try:
        where = ("--host", "127.0.0.1", "--port", str(ports[0]), "--webui-port", str(ports[1]))
        start("master", "master.Master", {"SPARK_LOCAL_IP": "127.0.0.1"}, *where)
        master = f"spark://127.0.0.1:{ports[0]}"
        for number, more in enumerate(machines, 1):
            own = home / f"machine-{number}"
            own.mkdir(exist_ok=True)
            host = f"127.0.0.{number + 1}"
            places = {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(own / "local")}
            size = ("--cores", "1", "--memory", "512m", "--work-dir", str(own / "work"))
            address = ("--host", host, "--webui-port", "0", *size, master)
            start(f"worker-{number}", "worker.Worker", {**places, **more}, *address)
        _wait_for_workers(f"http://127.0.0.1:{ports[1]}/json/", len(machines), home)
        yield master
    finally:
        for process in started:
            _kill_tree(process)


def executors_of(home: Path, number: int) -> list[psutil.Process]:
    """The running JVMs of the executors on a machine, counted from 1."""
    mark = f"127.0.0.{number + 1}"
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "--hostname" in line and mark in line and str(home) in _working_directory(process):
            found.append(process)
    return found


def _working_directory(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.NoSuchProcess:
        return ""


def _wait_for_workers(address: str, count: int, home: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urlopen(address, timeout=5) as answer:
                if answer.read().count(b'"ALIVE"') > count:  # the master is alive as well
                    return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.3)
    logs = "\n".join(path.read_text()[-1500:] for path in home.glob("*.log"))
    raise AssertionError(f"the cluster did not start within {_START_SECONDS} s:\n{logs}")


def _kill_tree(process: "subprocess.Popen[bytes]") -> None:
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    process.wait()
    for child in family:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
