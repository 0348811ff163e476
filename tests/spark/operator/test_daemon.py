"""pyspark's daemon that has our imports done before it forks workers."""

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT, ROWS_ENVIRONMENT
from lsmstate.spark_integration.session.unpacked_pyspark import unpacked_folder
from support.paths import ROOT

pytest.importorskip("pyspark")


@pytest.mark.parametrize(
    "more", [{}, ROWS_ENVIRONMENT, ENVIRONMENT], ids=["of users", "rows", "state"]
)
def test_it_listens_as_sparks_own_does_and_ends_with_spark(more: dict[str, str]) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "lsmstate.spark_integration.daemon", "pyspark.worker"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            **more,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port), timeout=60):
        mapped = [entry.path for entry in psutil.Process(daemon.pid).memory_maps()]
        assert any("pandas" in path for path in mapped) == (more != ROWS_ENVIRONMENT)
        assert any("memtable" in path for path in mapped) == bool(more), "what routes rows"
        assert any("sst_probe" in path for path in mapped) == (more == ENVIRONMENT), "holds state"
        threads = psutil.Process(daemon.pid).num_threads()
        assert threads == 1, "what another thread has locked stays locked in a worker"
    daemon.stdin.close()
    daemon.wait(60)
    daemon.stdout.close()


@pytest.mark.spark
def test_a_worker_looks_for_no_garbage_in_what_was_imported(spark: Any) -> None:
    """Spark's worker does after each task."""
    kept = spark.sparkContext.parallelize([0], 1).map(lambda _: gc.get_freeze_count()).first()
    assert kept > 10_000


@pytest.mark.spark
def test_a_worker_has_pyspark_from_its_folder(spark: Any) -> None:
    """Its archive has no byte code."""

    def places(_: int) -> list[str]:
        modules = [sys.modules[name] for name in sorted(sys.modules) if name.startswith("pyspark")]
        return [str(getattr(module, "__file__", "")) for module in modules]

    found = spark.sparkContext.parallelize([0], 1).map(places).first()
    assert [place for place in found if ".zip" in place] == []
    assert any(place.endswith("worker.py") for place in found)


@pytest.mark.parametrize(
    ("folder", "archive"),
    [
        ("pyspark", "pyspark/python/lib/pyspark.zip"),
        ("spark/python/pyspark", "spark/python/lib/pyspark.zip"),
    ],
    ids=["pip", "distribution"],
)
def test_the_folder_of_pyspark_is_that_of_the_same_spark(
    tmp_path: Path, folder: str, archive: str
) -> None:
    places = ["", str(tmp_path / archive), str(tmp_path / "other")]
    assert unpacked_folder(places) is None
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "worker.py").touch()
    assert unpacked_folder(places) == tmp_path / folder
    assert unpacked_folder(["", str(tmp_path / "other")]) is None
