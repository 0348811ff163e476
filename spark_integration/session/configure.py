"""configure: what a Spark session needs for lsmstate, set before the session starts."""

import os
import sys
from typing import TYPE_CHECKING, Final

from lsmstate.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Leaves out checks of Arrow's Java that Spark has made before: of where a value lies, and whether
#: it is null. They were a quarter of the time of a wide join's executors.
ARROW_OPTIONS: Final = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
#: Hotspot's second compiler waits for ten times as many calls and loops. A query starts with
#: thousands of methods that run some thousand times, and compiling them took a third of its first
#: micro-batch. What runs for every row gets there within its first hundred thousand rows.
JIT_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
#: Classes may take this much before the JVM first collects garbage on their account. A query loads
#: several times the JVM's own 21 MB, and passing such a bound makes G1 mark the whole heap.
CLASS_OPTIONS: Final = "-XX:MetaspaceSize=256m"
JAVA_OPTIONS: Final = f"{ARROW_OPTIONS} {JIT_OPTIONS} {CLASS_OPTIONS}"
#: Each task that sorts frames takes a page of Spark's memory, of up to 64 MB by itself. A few of
#: them make G1 mark the whole heap. What is larger than a page gets one of its own.
PAGE_BYTES: Final = "4m"
_DAEMON: Final = "lsmstate.spark_integration.daemon"
#: What the builder may say otherwise.
_SETTINGS: Final = {"spark.python.daemon.module": _DAEMON, "spark.buffer.pageSize": PAGE_BYTES}
#: They stand before the user's own options (``extraJavaOptions``), which therefore win.
_JAVA_SETTINGS: Final = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")


def configure(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    """Set up a Spark session for lsmstate. Call it before the session starts.

    - Workers on this machine run this Python. With a cluster as master their Python stays what
      ``PYSPARK_PYTHON`` says, since paths there may differ.
    - Workers are forked from a daemon that has imported lsmstate (``spark.python.daemon.module``).
      Every machine with workers therefore needs lsmstate.
    - Arrow's Java leaves out its second check of every value.
    - The JVM's second compiler takes up a method later, so that a query starts sooner.
    - The JVM collects no garbage because of the classes that a query loads as it starts.
    - Tasks take Spark's memory in small pages (``spark.buffer.pageSize``).

    What the builder and ``PYSPARK_PYTHON`` say stays: ``spark.pyspark.python``, another daemon,
    another page size and your own Java options. Settings of ``spark-defaults.conf`` and
    ``spark-submit`` are not seen: give them to the builder too, the master among them. Under Spark
    Connect nothing is set, since the server has these settings.

    Args:
        builder: The builder of the session, such as ``SparkSession.builder``. Its master, if it
            names one, is named before this call.

    Returns:
        The same builder.

    Raises:
        InvalidArgumentError: It is no builder, such as a session that has started.

    Example:
        ```python
        spark = configure(SparkSession.builder.master("local[4]")).getOrCreate()
        ```
    """
    if not hasattr(builder, "config"):
        raise InvalidArgumentError(
            f"configure({type(builder).__name__}): give SparkSession.builder, before getOrCreate: "
            "its settings count when the session starts"
        )
    # The builder has no public way to read what it was given.
    given: dict[str, str] = getattr(builder, "_options", {})
    if "spark.remote" in given or "SPARK_REMOTE" in os.environ:
        return builder
    _name_python(given)
    for setting, value in _SETTINGS.items():
        if setting not in given:
            builder.config(setting, value)
    for setting in _JAVA_SETTINGS:
        others = given.get(setting, "")
        if JAVA_OPTIONS not in others:
            builder.config(setting, f"{JAVA_OPTIONS} {others}".rstrip())
    return builder


def _name_python(given: dict[str, str]) -> None:
    """Name the workers' Python. Spark reads it from the environment as the session starts, and
    ``spark.pyspark.python`` only where spark-submit started this program."""
    if "PYSPARK_PYTHON" in os.environ:
        return
    master = given.get("spark.master") or os.environ.get("MASTER")
    # spark-submit has started the JVM already, and may have been told of a cluster.
    is_local = master.startswith("local") if master else "PYSPARK_GATEWAY_PORT" not in os.environ
    python = given.get("spark.pyspark.python") or (sys.executable if is_local else None)
    if python:
        os.environ["PYSPARK_PYTHON"] = python
