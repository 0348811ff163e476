"""Streams of ``multiway_join`` pass few files, and never from a lower layer to a higher one."""

import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, Time, multiway_join
from support.followed import followed
from support.spark_streams import BACKEND, FileStream

pytestmark = pytest.mark.spark

STATE = State(backend=BACKEND, memory="8m", buckets=2)
MOST_FILES = 30


@pytest.mark.parametrize(
    ("on", "options"),
    [
        ("a.k = b.k AND b.k = c.k", {}),
        ("a.k = b.k AND b.j = c.j AND a.x < c.x", {}),
        (
            "a LEFT JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR",
            {"emit": "final"},
        ),
        ("a.k = b.k AND a.x BETWEEN b.x AND b.x + 5", {"how": "left", "emit": "changes"}),
        ("abs(a.x - b.x) <= 5", {"time": Time(within="10 minutes")}),
    ],
)
def test_streams_pass_few_files(
    spark: Any, tmp_path: Path, on: str, options: dict[str, Any]
) -> None:
    names = "abc" if "c." in on else "ab"
    streams = {
        name: FileStream(_made(tmp_path / name), "k BIGINT, j BIGINT, x BIGINT, at TIMESTAMP")
        .read(spark)
        .withWatermark("at", "1 minute")
        for name in names
    }
    # Without the decorator that checks the names of options.
    join = inspect.unwrap(multiway_join)
    trip = followed(
        lambda: join(streams, on, state=STATE, **options),
        [streams, *streams.values()],
    )
    assert len(trip.files) > 3, trip.files
    assert len(trip.files) < MOST_FILES, sorted(trip.files)
    assert not trip.upward


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
