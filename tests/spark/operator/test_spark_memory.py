"""Memory of a worker under Spark: measured, not claimed."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from lsmstate.options import MIB
from lsmstate.spark import State, multiway_join
from support.spark_streams import BACKEND, FileStream, metric, pieces

pytestmark = pytest.mark.spark

CAP_BYTES = 16 * MIB
#: What a worker may hold beyond the cap: frames on their way in and out, and the interpreter's.
OVERHEAD_BYTES = 64 * MIB


def run(joined: Any, home: Path) -> Any:
    query = (
        joined.writeStream.format("noop")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def assert_within_cap(query: Any) -> None:
    growth = max(metric(query, "worker_growth_bytes"))
    assert growth > 0, "growth was not measured"
    assert growth <= CAP_BYTES + OVERHEAD_BYTES, f"a worker grew by {growth / MIB:.0f} MiB"


def join_on_one_key(spark: Any, home: Path, rows: int) -> None:
    """rows * rows results of some 150 bytes, all of one key."""
    streams = {}
    for name in ("a", "b"):
        table = pa.table(
            {
                f"{name}_k": pa.array([1] * rows, pa.int64()),
                f"{name}_text": [f"{name}{i:059d}" for i in range(rows)],
            }
        )
        stream = FileStream(home / name, f"{name}_k BIGINT, {name}_text STRING")
        streams[name] = stream.add(table).read(spark)
    joined = multiway_join(
        streams, on="a.a_k = b.b_k", state=State(memory=CAP_BYTES, backend=BACKEND)
    )
    query = run(joined, home)
    assert sum(metric(query, "rows_out")) == rows * rows
    assert_within_cap(query)


@pytest.mark.stress
def test_one_key_with_a_result_of_250_megabytes(spark: Any, tmp_path: Path) -> None:
    join_on_one_key(spark, tmp_path, 1_300)


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_one_key_with_a_result_of_2_gigabytes(spark: Any, tmp_path: Path) -> None:
    join_on_one_key(spark, tmp_path, 3_800)


def test_state_larger_than_the_cap_spills(spark: Any, tmp_path: Path) -> None:
    """80 MB of rows that do not compress, arriving in two batches, under a cap of 16 MB."""
    rng = random.Random(3)
    streams = {}
    for name, rows in (("a", 40_000), ("b", 2_000)):
        table = pa.table(
            {
                f"{name}_k": pa.array([rng.randrange(30_000) for _ in range(rows)], pa.int64()),
                f"{name}_raw": pa.array([rng.randbytes(1_900) for _ in range(rows)], pa.binary()),
            }
        )
        stream = FileStream(tmp_path / name, f"{name}_k BIGINT, {name}_raw BINARY")
        streams[name] = stream.add(*pieces(table, 2)).read(spark)
    joined = multiway_join(
        streams, on="a.a_k = b.b_k", state=State(memory=CAP_BYTES, backend=BACKEND, buckets=2)
    )
    query = run(joined, tmp_path)
    assert sum(metric(query, "rows_in")) == 42_000
    assert max(metric(query, "state_disk_bytes")) > 4 * CAP_BYTES
    assert sum(metric(query, "spilled_bytes")) > 4 * CAP_BYTES
    assert max(metric(query, "peak_state_bytes")) <= CAP_BYTES
    assert_within_cap(query)
