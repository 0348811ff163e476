"""How a session is set up, and that a Python without lsmstate is noticed before a query runs."""

import os
import subprocess
import sys
import textwrap
import venv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lsmstate import InvalidArgumentError
from lsmstate.spark import configure, multiway_join, stateful_batches, streaming_sql, to_multiway
from lsmstate.spark_integration.session import worker_python
from lsmstate.spark_integration.session.configure import JAVA_OPTIONS
from support.paths import ROOT

DAEMON = "spark.python.daemon.module"
JAVA = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing in the environment says what Spark should use."""
    for name in ("PYSPARK_PYTHON", "MASTER", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    return monkeypatch


def settings(**given: str) -> dict[str, str]:
    """What the builder of a session has after ``configure``; ``given`` has _ for dots."""
    builder = SparkSession.Builder()
    for name, value in given.items():
        builder.config(name.replace("_", "."), value)
    assert configure(builder) is builder
    return dict(builder._options)


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local-cluster[2,1,1024]"])
def test_workers_on_this_machine_run_this_python(unset: Any, master: str | None) -> None:
    found = settings(spark_master=master) if master else settings()
    assert found[DAEMON] == "lsmstate.spark_integration.daemon"
    assert [found[name] for name in JAVA] == [JAVA_OPTIONS] * 2
    assert found["spark.buffer.pageSize"] == "4m"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_is_set_stays(unset: Any) -> None:
    unset.setenv("PYSPARK_PYTHON", "mine")
    found = settings(
        spark_master="local",
        spark_python_daemon_module="my.daemon",
        spark_buffer_pageSize="16m",
        spark_driver_defaultJavaOptions="-Dx=1",
        spark_executor_extraJavaOptions="-Dx=2",
    )
    assert os.environ["PYSPARK_PYTHON"] == "mine"
    assert found[DAEMON] == "my.daemon"
    assert found["spark.buffer.pageSize"] == "16m"
    assert found[JAVA[0]] == f"{JAVA_OPTIONS} -Dx=1"
    assert found["spark.executor.extraJavaOptions"] == "-Dx=2"


def test_a_second_call_changes_nothing(unset: Any) -> None:
    builder = configure(SparkSession.Builder())
    once = dict(builder._options)
    assert configure(builder)._options == once


def test_the_setting_of_spark_for_the_python_holds_without_spark_submit(unset: Any) -> None:
    settings(spark_master="spark://host:7077", spark_pyspark_python="/opt/python")
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"


def test_paths_of_a_cluster_are_not_guessed(unset: Any) -> None:
    settings(spark_master="spark://host:7077")
    assert "PYSPARK_PYTHON" not in os.environ
    unset.setenv("PYSPARK_GATEWAY_PORT", "1")  # spark-submit, which may have been told a master
    settings()
    assert "PYSPARK_PYTHON" not in os.environ


def test_a_server_of_spark_connect_has_its_own_settings(unset: Any) -> None:
    assert set(settings(spark_remote="sc://host")) == {"spark.remote"}
    assert "PYSPARK_PYTHON" not in os.environ


@pytest.mark.stress
@pytest.mark.spark
@pytest.mark.timeout(120)
def test_a_session_is_set_up(tmp_path: Path) -> None:
    """In a process of its own, whose ``python3`` is another one."""
    program = """
        import os
        from pyspark.sql import SparkSession
        from lsmstate.spark import configure

        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder.config("spark.driver.extraJavaOptions", "-Dours=kept -XX:TieredStopAtLevel=1")
        builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder.config("spark.driver.host", "127.0.0.1")
        spark = configure(builder).getOrCreate()
        system = spark._jvm.java.lang.System
        arrows = ("arrow.enable_unsafe_memory_access", "arrow.enable_null_check_for_get")
        print(*(system.getProperty(name) for name in (*arrows, "ours")))
        said = spark.sparkContext.range(1).map(lambda _: list(__import__("sys").modules))
        modules = said.first()
        print("pyarrow" in modules and any(name.startswith("lsmstate.") for name in modules))
        spark.stop()
    """
    (tmp_path / "python3").symlink_to("/bin/false")
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["true", "false", "kept", "True"]


# The check. -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of this version without packages."""
    directory = tmp_path_factory.mktemp("bare")
    venv.create(directory, with_pip=False)
    return str(directory / "bin" / "python")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The Pythons that were started, in a directory and with a path that have no lsmstate."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    run, started = subprocess.run, list[str]()

    def counted(command: list[str], **arguments: Any) -> Any:
        started.append(command[0])
        return run(command, **arguments)

    monkeypatch.setattr(worker_python.subprocess, "run", counted)
    worker_python._fit.clear()
    yield started
    worker_python._fit.clear()


def session(python: str, master: str = "local[2]", **environment: str) -> Any:
    """What the check looks at of a session."""
    context = SimpleNamespace(master=master, pythonExec=python, environment=environment)
    return SimpleNamespace(sparkContext=context, _jsparkSession=None)


def test_this_python_is_not_asked(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    worker_python.check_worker_python(session(sys.executable))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    worker_python.check_worker_python(session("python"))
    assert asked == []


def test_another_python_that_does_not_fit_is_asked_again(
    asked: list[str], bare_python: str
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidArgumentError) as raised:
            worker_python.check_worker_python(session(bare_python))
        assert str(raised.value) == (
            f"Spark's workers would run {bare_python!r}, which has no lsmstate, no pyarrow, no "
            f"pandas; set PYSPARK_PYTHON={sys.executable} before the session starts, or let "
            "lsmstate.spark.configure(SparkSession.builder) set it"
        )
    assert asked == [bare_python] * 2


def test_another_python_with_the_packages_will_do(asked: list[str], bare_python: str) -> None:
    packages = next(path for path in sys.path if (Path(path) / "pyarrow").exists())
    path = os.pathsep.join([str(ROOT), packages])
    for _ in range(2):
        worker_python.check_worker_python(session(bare_python, PYTHONPATH=path))
    assert asked == [bare_python]


def test_another_version_will_not_do(asked: list[str], tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 3.9\n")
    old.chmod(0o755)
    with pytest.raises(InvalidArgumentError, match=r"which is Python 3\.9 while this program"):
        worker_python.check_worker_python(session(str(old)))


def test_no_program_at_all(asked: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="which is no program on this machine"):
        worker_python.check_worker_python(session("python-of-nobody"))
    with pytest.raises(InvalidArgumentError, match=r"which does not start \(exit status 1\)"):
        worker_python.check_worker_python(session("/bin/false"))


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host"])
def test_workers_of_a_cluster_are_trusted(asked: list[str], master: str) -> None:
    worker_python.check_worker_python(session("python-of-nobody", master))
    worker_python.check_worker_python(SimpleNamespace())  # type: ignore[arg-type]  # Connect


@pytest.mark.spark
@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: multiway_join({"a": a, "b": b}, on=["k"]),
        lambda a, _: stateful_batches(a, key="k", function=print, streams={}, schema="k LONG"),
        lambda a, _: streaming_sql(a.sparkSession, "SELECT 1"),
        lambda a, b: to_multiway(a.join(b, "k")),
    ],
    ids=["multiway_join", "stateful_batches", "streaming_sql", "to_multiway"],
)
def test_every_entry_point_checks(
    spark: Any, asked: list[str], bare_python: str, monkeypatch: Any, call: Any
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    streams = [spark.readStream.format("rate").load().select(F.col("value").alias("k"))] * 2
    with pytest.raises(InvalidArgumentError, match="PYSPARK_PYTHON"):
        call(*streams)
