"""A band join on Spark, local[2], beside our own equi-join with as many rows and results.

    python -m bench.spark.band_join
    python -m bench.spark.band_join --rows 20000 --batches 1
    python -m bench.spark.band_join --rows 1 --batches 1   # what start-up takes
    python -m bench.spark.band_join --join band --buckets 8 --routing biclique

Keys are uniform, and a row has one partner on average. Results are counted and thrown away. Each
join is a process of its own; CPU is that of the JVM and the Python workers from the query's start.

Spark refuses such a join of streams. What its users write is measured too: ``foreachBatch`` keeps
all rows as files, and joins the new ones with those files in a batch join on bins.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from bench.spark.deduplication import TreeMeter
from bench.spark.spark_joins import session
from lsmstate.joins.options import Routing
from lsmstate.spark import Skew, State, metrics_of, multiway_join

#: Half the width of the band.
WITHIN = 500
CONDITIONS = {
    "band": f"b.k BETWEEN a.k - {WITHIN} AND a.k + {WITHIN}",
    "equality": "a.k = b.k",
}
JOINS = (*CONDITIONS, "bins")


def make_stream(directory: Path, seed: int, rows: int, batches: int, keys: int) -> None:
    """A file for each micro-batch, with keys below a number."""
    directory.mkdir()
    rng = np.random.default_rng(seed)
    for number, part in enumerate(np.array_split(np.arange(rows), batches)):
        table = pa.table({"id": part, "k": rng.integers(0, keys, len(part))})
        pq.write_table(table, directory / f"{number:04d}.parquet")


class BinJoin:
    """A band join in ``foreachBatch``: rows are kept as files, and found by bins of their key."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self.results = 0

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Store a micro-batch, and count its results with itself and with all that came before.

        The files of a micro-batch are written over when it is run again.
        """
        spark = rows.sparkSession
        rows.write.mode("overwrite").parquet(str(self._history / f"batch={number}"))
        every = spark.read.schema("id BIGINT, k BIGINT, stream STRING, batch INT")
        stored = every.parquet(str(self._history)).where(f"batch <= {number}")
        of_both = {stream: stored.where(f"stream = '{stream}'") for stream in "ab"}
        pairs = self._pairs(of_both["a"].where(f"batch = {number}"), of_both["b"])
        later = self._pairs(
            of_both["a"].where(f"batch < {number}"), of_both["b"].where(f"batch = {number}")
        )
        self.results += pairs.union(later).count()

    def _pairs(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Pairs in the band. A row of the right stream stands in its bin and in both neighbours."""
        width = 2 * WITHIN + 1
        binned = left.selectExpr("id AS a_id", "k AS a_k", f"k DIV {width} AS bin")
        bins = f"explode(array(k DIV {width} - 1, k DIV {width}, k DIV {width} + 1)) AS bin"
        spread = right.selectExpr("id AS b_id", "k AS b_k", bins)
        return binned.join(spread, "bin").where(f"abs(a_k - b_k) <= {WITHIN}")


def run_join(
    name: str, rows: int, batches: int, buckets: int, routing: Routing | None
) -> dict[str, float]:
    """One join in this process: its CPU and wall seconds, and its results."""
    keys = rows if name == "equality" else rows * (2 * WITHIN + 1)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        spark = session(home, {}, is_ours=name != "bins")
        streams = {}
        for seed, stream in enumerate("ab"):
            make_stream(home / stream, seed, rows, batches, keys)
            reader = spark.readStream.schema("id BIGINT, k BIGINT").option("maxFilesPerTrigger", 1)
            streams[stream] = reader.parquet(str(home / stream))
        meter = TreeMeter()
        begun, started = meter.cpu_seconds(), time.perf_counter()
        bins = BinJoin(home / "history")
        if name == "bins":
            both = [
                each.selectExpr("*", f"'{stream}' AS stream") for stream, each in streams.items()
            ]
            writer = functools.reduce(DataFrame.union, both).writeStream.foreachBatch(bins)
        else:
            state, skew = State(memory="64m", buckets=buckets), Skew(routing=routing)
            joined = multiway_join(streams, CONDITIONS[name], state=state, skew=skew)
            writer = joined.writeStream.format("noop")
        writer = writer.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(home / "checkpoint")).start()
        query.awaitTermination()
        found = (metrics_of(each) for each in query.recentProgress)
        return {
            "cpu_seconds": meter.cpu_seconds() - begun,
            "wall_seconds": time.perf_counter() - started,
            "results": bins.results + sum(each.rows_out for each in found if each is not None),
        }


def main() -> None:
    """Print a line a join."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each stream")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--join", choices=JOINS, help="one of them, in this process")
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--routing", choices=("biclique", "ranges"), help="of the band join")
    asked = parser.parse_args()
    if asked.join:
        routing = asked.routing if asked.join == "band" else None
        sizes = asked.rows, asked.batches, asked.buckets
        print(json.dumps(run_join(asked.join, *sizes, routing)))
        return
    for name in JOINS:
        command = [sys.executable, "-m", "bench.spark.band_join", "--join", name, *sys.argv[1:]]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        run = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name}: {run['cpu_seconds']:.1f} CPU s, {run['wall_seconds']:.1f} s, "
            f"{run['results']:,} results"
        )


if __name__ == "__main__":
    main()
