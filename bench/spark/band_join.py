"""A band join on Spark, local[2], beside our own equi-join with as many rows and results.

    python -m bench.spark.band_join
    python -m bench.spark.band_join --rows 20000 --batches 1
    python -m bench.spark.band_join --rows 1 --batches 1   # what start-up takes

Keys are uniform, and a row has one partner on average. Results are counted and thrown away. Each
join is a process of its own; CPU is that of the JVM and the Python workers from the query's start.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.spark.deduplication import TreeMeter
from bench.spark.spark_joins import session
from lsmstate.spark import State, metrics_of, multiway_join

#: Half the width of the band.
WITHIN = 500
CONDITIONS = {
    "band": f"b.k BETWEEN a.k - {WITHIN} AND a.k + {WITHIN}",
    "equality": "a.k = b.k",
}


def make_stream(directory: Path, seed: int, rows: int, batches: int, keys: int) -> None:
    """A file for each micro-batch, with keys below a number."""
    directory.mkdir()
    rng = np.random.default_rng(seed)
    for number, part in enumerate(np.array_split(np.arange(rows), batches)):
        table = pa.table({"id": part, "k": rng.integers(0, keys, len(part))})
        pq.write_table(table, directory / f"{number:04d}.parquet")


def run_join(name: str, rows: int, batches: int) -> dict[str, float]:
    """One join in this process: its CPU and wall seconds, and its results."""
    keys = rows * (2 * WITHIN + 1) if name == "band" else rows
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        spark = session(home, {}, is_ours=True)
        streams = {}
        for seed, stream in enumerate("ab"):
            make_stream(home / stream, seed, rows, batches, keys)
            reader = spark.readStream.schema("id BIGINT, k BIGINT").option("maxFilesPerTrigger", 1)
            streams[stream] = reader.parquet(str(home / stream))
        meter = TreeMeter()
        begun, started = meter.cpu_seconds(), time.perf_counter()
        joined = multiway_join(streams, CONDITIONS[name], state=State(memory="64m", buckets=2))
        writer = joined.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
        query.awaitTermination()
        found = (metrics_of(each) for each in query.recentProgress)
        return {
            "cpu_seconds": meter.cpu_seconds() - begun,
            "wall_seconds": time.perf_counter() - started,
            "results": sum(each.rows_out for each in found if each is not None),
        }


def main() -> None:
    """Print a line a join."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each stream")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--join", choices=CONDITIONS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.join:
        print(json.dumps(run_join(asked.join, asked.rows, asked.batches)))
        return
    for name in CONDITIONS:
        sizes = "--rows", str(asked.rows), "--batches", str(asked.batches)
        command = [sys.executable, "-m", "bench.spark.band_join", "--join", name, *sizes]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        run = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name}: {run['cpu_seconds']:.1f} CPU s, {run['wall_seconds']:.1f} s, "
            f"{run['results']:,} results"
        )


if __name__ == "__main__":
    main()
