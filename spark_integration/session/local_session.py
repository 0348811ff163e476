"""A quiet local Spark session for the commands."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.session.configure import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Spark logs of a run, in the run's directory.
LOG_NAME = "spark.log"


def start_session(directory: Path, cores: int, batches: int = 0) -> "SparkSession":
    """Start a session whose files lie in ``directory`` and whose workers use this Python.

    All progress reports of a query of ``batches`` micro-batches are kept, for a report at its end.
    """
    require_java()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log_settings = Path(__file__).with_name("log4j2.properties")
    java_options = (
        f"-Dlog4j2.configurationFile={log_settings.as_uri()} "
        f'"-Dlsmstate.log={directory / LOG_NAME}"'
    )
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("lsmstate")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "spark-local"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.numRecentProgressUpdates", 2 * batches + 100)
    )
    with _interrupt_waits() as interrupted:
        spark = configure(builder).getOrCreate()
    if interrupted:
        spark.stop()
        raise KeyboardInterrupt
    return spark


@contextmanager
def _interrupt_waits() -> Iterator[list[int]]:
    """Record Ctrl-C instead of raising it. PySpark, if it is interrupted while it starts its JVM,
    leaves that running without an owner."""
    taken: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield taken  # no signal is handled here
        return
    handler = signal.signal(signal.SIGINT, lambda number, _: taken.append(number))
    try:
        yield taken
    finally:
        signal.signal(signal.SIGINT, handler)


def require_java() -> None:
    """Raise one sentence instead of the gateway's stack trace if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise InvalidArgumentError(
            f"no Java ({java}) was found; Spark needs version 17 or later: install one, e.g. "
            "apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
        )
