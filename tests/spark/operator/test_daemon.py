"""pyspark's daemon that has our imports done before it forks workers."""

import gc
import os
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from lsmstate.spark_integration.metrics.worker_memory import ENVIRONMENT, ROWS_ENVIRONMENT
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
