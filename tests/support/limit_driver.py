"""A program that a test runs: join four streams on workers whose memory is limited.

python limit_driver.py HOME BACKEND MEMORY      (LIMIT_BYTES in the environment)

The last line of standard output is a JSON object with what the query reported.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT), str(TESTS)]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")]
)

from lsmstate.join import State  # noqa: E402
from support.spark_streams import FileStream, metric, run_to_end  # noqa: E402

NAMES = ("a", "b", "c", "d")
CONDITION = "a.a_k = b.b_k AND a.a_k = c.c_k AND a.a_k = d.d_k"


def streams(home: Path) -> dict[str, FileStream]:
    return {
        name: FileStream(home / name, f"{name}_k BIGINT, {name}_i BIGINT, {name}_raw BINARY")
        for name in NAMES
    }


def limit_bites(spark: object) -> bool:
    """Whether a worker that asks for as much as the limit is refused."""
    limit = int(os.environ["LIMIT_BYTES"])

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        try:
            refused = not bytearray(limit)
        except MemoryError:
            refused = True
        yield pa.RecordBatch.from_pydict({"refused": [refused]})

    rows = spark.range(1, numPartitions=1).mapInArrow(ask, "refused BOOLEAN").collect()
    return all(row.refused for row in rows)


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from lsmstate.spark import multiway_join

    home, backend, memory = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.python.daemon.module", "support.limited_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    print(f"limit bites: {limit_bites(spark)}", flush=True)
    frames = {name: stream.read(spark) for name, stream in streams(home).items()}
    joined = multiway_join(
        frames, on=CONDITION, state=State(memory=memory, backend=backend, buckets=2)
    )
    shown = joined.select(
        *(f"{name}_i" for name in NAMES),
        *(F.md5(f"{name}_raw").alias(f"{name}_md5") for name in NAMES),
    )
    place = home / backend
    query = run_to_end(shown, place / "checkpoint", place / "out")
    found = {
        name: metric(query, name)
        for name in ("rows_in", "peak_state_bytes", "state_disk_bytes", "worker_growth_bytes")
    }
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
