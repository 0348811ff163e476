"""Ways of running a query that the join refuses, on real queries; a right start goes on after."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException

from lsmstate.spark import State, multiway_join
from support.spark_streams import BACKEND, FileStream, collected

pytestmark = pytest.mark.spark


@pytest.fixture
def joined(spark: Any, tmp_path: Path) -> Any:
    rows = pa.table({"k": pa.array([1, 2], pa.int64())})
    streams = {name: FileStream(tmp_path / name, "k BIGINT").add(rows) for name in "ab"}
    frames = {name: stream.read(spark) for name, stream in streams.items()}
    return multiway_join(frames, on=["k"], state=State(backend=BACKEND))


@pytest.fixture
def unchecked(spark: Any) -> Iterator[None]:
    """Spark's own checks of a plan against its output mode and trigger, switched off."""
    checks = (
        "spark.sql.streaming.realTimeMode.allowlistCheck",
        "spark.sql.streaming.unsupportedOperationCheck",
    )
    for check in checks:
        spark.conf.set(check, "false")
    yield
    for check in checks:
        spark.conf.unset(check)


def writer(joined: Any, home: Path, mode: str, **trigger: str) -> Any:
    written = joined.writeStream.format("console").outputMode(mode)
    return written.option("checkpointLocation", str(home / "checkpoint")).trigger(**trigger)


def assert_a_right_start_goes_on(joined: Any, home: Path) -> None:
    assert not (home / "checkpoint" / "lsmstate").exists()
    assert sorted(map(tuple, collected(joined, home))) == [(1, 1), (2, 2)]


def test_async_progress_tracking(joined: Any, tmp_path: Path) -> None:
    """It writes no offset before the next batch starts, so a pointer could be lost."""
    late = writer(joined, tmp_path, "append", processingTime="0 seconds")
    query = late.option("asyncProgressTrackingEnabled", "true").start()
    with pytest.raises(StreamingQueryException, match="without asyncProgressTrackingEnabled"):
        query.awaitTermination(60)
    assert_a_right_start_goes_on(joined, tmp_path)


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ({"realTime": "30 seconds"}, r"not under RealTimeTrigger\(30000\); use trigger\("),
        pytest.param(
            {"continuous": "1 second"},
            r"not under ContinuousTrigger\(1000\); use trigger\(",
            marks=pytest.mark.stress,
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_modes_without_micro_batches(
    joined: Any, tmp_path: Path, trigger: dict[str, str], words: str
) -> None:
    query = writer(joined, tmp_path, "update", **trigger).start()
    with pytest.raises(StreamingQueryException, match=words):
        query.awaitTermination(60)
    assert_a_right_start_goes_on(joined, tmp_path)


@pytest.mark.parametrize(
    ("mode", "trigger", "words"),
    [
        ("append", {"realTime": "30 seconds"}, "STREAMING_REAL_TIME_MODE.OUTPUT_MODE_NOT_SUPP"),
        ("update", {"realTime": "30 seconds"}, "append mode is not supported with Update"),
        ("append", {"continuous": "1 second"}, "Continuous processing does not support"),
    ],
)
@pytest.mark.stress
def test_spark_refuses_them_within_start(
    joined: Any, tmp_path: Path, mode: str, trigger: dict[str, str], words: str
) -> None:
    """Unless its checks are switched off, Spark is first, and nothing is written at all."""
    with pytest.raises(AnalysisException, match=words):
        writer(joined, tmp_path, mode, **trigger).start()
    assert list((tmp_path / "checkpoint").iterdir()) == []
    assert_a_right_start_goes_on(joined, tmp_path)
