"""Fixtures: a Spark session (its tests carry the marker ``spark``), and a directory in memory."""

import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.examples import examples
from support.paths import ROOT

pytest_plugins = ["support.cpu_times", "support.one_spark"]

#: Whether Spark compiles code for each plan, as it does for users and in `make stress`.
#: For the few rows of most tests that takes longer than to interpret the plan.
CODEGEN = os.environ.get("LSMSTATE_CODEGEN", "false")
FACTORY = "FALLBACK" if CODEGEN == "true" else "NO_CODEGEN"
#: Tests are over before code that is compiled a second time, and better, pays. The room for code is
#: small then, and one of its threads would sweep it all the time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"

# The same for the programs that tests start: Spark reads its settings from Java's properties, too.
os.environ["SPARK_SUBMIT_OPTS"] = " ".join(
    [
        JAVA_OPTIONS,
        f"-Dspark.sql.codegen.wholeStage={CODEGEN}",
        f"-Dspark.sql.codegen.factoryMode={FACTORY}",
    ]
)

# For tests that do not say how many; 100 is what hypothesis tries.
settings.register_profile("lsmstate", max_examples=examples(100))
settings.load_profile("lsmstate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with most tests of Spark come first: see ``one_spark``."""
    on_spark = Counter(item.path for item in items if item.get_closest_marker("spark"))
    items.sort(key=lambda item: -on_spark[item.path])


def pytest_collection_finish() -> None:
    """Collections of garbage, which many tests ask for, pass over all that stands by now: modules
    and thousands of tests, half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> None:
    """Garbage of the tests before may hold stores, whose memory counts in this process. What stands
    then, such as modules that these imported, is no garbage later."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One local session for all tests: two cores, no user interface, an empty warehouse."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers import the package from this tree even where it is not installed.
    known = os.environ.get("PYTHONPATH")
    root = str(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, known] if known else [root])
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("lsmstate tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        # As lsmstate.spark.configure has it: a worker is a fork, and imports nothing anew.
        .config("spark.python.daemon.module", "lsmstate.spark_integration.daemon")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.codegen.wholeStage", CODEGEN)
        .config("spark.sql.codegen.factoryMode", FACTORY)
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.streaming.pollingDelay", "10ms")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def few_partitions(spark: Any) -> Iterator[None]:
    """Two tasks to a stage of Spark's own; unset afterwards, since a value counts as the user's."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.unset("spark.sql.shuffle.partitions")


@pytest.fixture(scope="module")
def view_files(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The streams of ``sql_views``, by the names under which Spark's SQL knows them."""
    from support.sql_views import make_files, views  # needs PySpark, which not every test has

    found = make_files(tmp_path_factory.mktemp("views"))
    with views(spark, found):
        yield found


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: for hundreds of syncs, none of which has to be
    real. A test that makes many stores removes each, since there may be little room."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=base) as directory:
        yield Path(directory)


@pytest.fixture
def elsewhere(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """See ``stopped_elsewhere.queries``."""
    from support.stopped_elsewhere import queries  # imports what needs PySpark

    with queries(memory_path, monkeypatch) as made:
        yield made
