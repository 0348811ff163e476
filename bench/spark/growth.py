"""Does a micro-batch cost the same after 200 of them? One bucket of a join of three streams.

    python -m bench.spark.growth                         # another process for every micro-batch
    python -m bench.spark.growth --workers kept          # one process: open files, cache stay
    python -m bench.spark.growth --spark                 # a real query, a new worker for every task
    python -m bench.spark.growth --spark --workers kept  # the same, workers as Spark gives them

Each key has one row in ``a`` and one in ``b``, which arrive together; each row of ``c`` names one
of all the keys that have arrived so far, so every micro-batch probes and reads the whole history
and gives as many results as it has rows of ``c``. A micro-batch opens the store at the last
pointer, joins and commits, as a task attempt on Spark does. CPU time is that of the process that
does so, from its fork on; of a query, that of Spark and all its workers. The last line compares
the first and the last 20 micro-batches (the very first ten, in which everything fits the memtable
and no merge is due, are left out).
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa

from lsmstate.join import State
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.protocols import Batch
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options, parse_bytes
from lsmstate.spark_integration.metrics.reports import by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("a", "b", "c")
WARM_UP = 10
WINDOW = 20


def rows_of(batch: int, rows: int, before: int = 0) -> dict[str, pa.RecordBatch]:
    """The rows of one micro-batch, by stream: a key, 80 bytes of text, a number. The first one
    has the rows of ``before`` more."""
    random = np.random.default_rng(batch)
    end = (before + batch + 1) * rows
    count = end if batch == 0 else rows
    new = np.arange(end - count, end) * 2_654_435_761 % (1 << 40)
    asked = random.integers(0, end, count) * 2_654_435_761 % (1 << 40)
    found = {}
    for name, keys in zip(NAMES, (new, random.permutation(new), asked), strict=True):
        text = [f"{name}{key:078d}" for key in keys.tolist()]
        numbers = pa.array(random.integers(0, 1 << 40, count))
        found[name] = pa.record_batch(
            [pa.array(keys, pa.int64()), pa.array(text), numbers],
            names=[f"{name}_k", f"{name}_text", f"{name}_n"],
        )
    return found


def spec() -> JoinSpec:
    return JoinSpec.create(
        {name: rows.schema for name, rows in rows_of(0, 1).items()},
        "a.a_k = b.b_k AND a.a_k = c.c_k",
    )


def micro_batch(
    directory: str, pointer: str | None, batch: int, options: Options, rows: int, before: int
) -> Any:
    """One attempt: what it left, and what it cost."""
    arrived = rows_of(batch, rows, before)
    wall, cpu = time.perf_counter(), time.process_time()
    join = spec()
    with LsmStore.open_attempt(
        directory,
        join.stream_schemas,
        pointer=pointer,
        batch_id=batch,
        attempt_id="a",
        options=options,
    ) as store:
        joined = UMJoin(join, store)
        results = sum(
            found.num_rows for name in NAMES for found in joined.process(Batch(name, arrived[name]))
        )
        pointer = store.commit()
        stats = store.stats()
    return {
        "pointer": pointer,
        "results": results,
        "cpu_ms": (time.process_time() - cpu) * 1000,
        "wall_ms": (time.perf_counter() - wall) * 1000,
        "runs": stats.counters["runs"],
        "state_mib": stats.disk_bytes / (1 << 20),
        "written_mib": stats.spilled_bytes / (1 << 20),
    }


def in_another_process(*arguments: Any) -> Any:
    """The result of ``micro_batch`` in a fork that has never seen the store."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            json.dump(micro_batch(*arguments), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


def run(directory: str, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    one = micro_batch if arguments.workers == "kept" else in_another_process
    options = Options(memory_bytes=parse_bytes(arguments.memory), retained_batches=20)
    pointer = None
    for batch in range(arguments.batches):
        found = one(directory, pointer, batch, options, arguments.rows, arguments.before)
        assert found["results"] >= arguments.rows, "every row of c has one match"
        pointer = found["pointer"]
        yield {**found, "files": len(os.listdir(directory))}


def run_on_spark(home: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A query over files, one of each stream a micro-batch; times as Spark reports them."""
    import pyarrow.parquet as pq

    from lsmstate.spark import multiway_join

    for batch in range(arguments.batches):
        for name, rows in rows_of(batch, arguments.rows, arguments.before).items():
            path = home / name / f"{batch:04d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table(rows), path)
            os.utime(path, (1_700_000_000 + batch,) * 2)
    spark = session(arguments)
    frames = {
        name: spark.readStream.schema(f"{name}_k BIGINT, {name}_text STRING, {name}_n BIGINT")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / name))
        for name in NAMES
    }
    joined = multiway_join(
        frames, on="a.a_k = b.b_k AND a.a_k = c.c_k", state=State(memory=arguments.memory)
    )
    cpu = CpuMeter()
    left: list[dict[str, float]] = []

    def consume(batch: Any, _: int) -> None:
        batch.write.format("noop").mode("append").save()
        state = sum(1 for _ in (home / "checkpoint" / "lsmstate").rglob("*.sst"))
        left.append({"cpu_ms": cpu.passed_ms(), "files": state})

    writer = joined.writeStream.foreachBatch(consume)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination()
    done = [p for p in started.recentProgress if "lsmstate" in p["observedMetrics"]]
    for progress, found in zip(done, left, strict=True):
        metrics = by_name(progress["observedMetrics"]["lsmstate"])
        durations = progress["durationMs"]
        assert metrics["rows_out"] >= arguments.rows, "every row of c has one match"
        yield {
            **found,
            "batch_ms": durations["triggerExecution"],
            "operator_ms": durations["addBatch"],
            "commit_ms": metrics["commit_ms"],
            "hand_overs": metrics["hand_overs"],
            "hand_over_ms": metrics["longest_hand_over_ms"],
            "runs_per_key": metrics["runs_searched"] / metrics["probed_keys"],
            "merged_mib": metrics["merged_bytes"] / (1 << 20),
            "state_mib": metrics["state_disk_bytes"] / (1 << 20),
        }
    spark.stop()


def session(arguments: argparse.Namespace) -> "SparkSession":
    """Two cores. ``--workers changed``: Spark forks another worker for every task."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.daemon.module": "lsmstate.spark_integration.daemon",
        "spark.python.worker.reuse": str(arguments.workers == "kept").lower(),
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.sql.streaming.numRecentProgressUpdates": str(arguments.batches + 10),
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class CpuMeter:
    """CPU time of Spark's JVM and all its workers, those that have ended too."""

    def __init__(self) -> None:
        self._before = 0.0
        self.passed_ms()

    def passed_ms(self) -> float:
        """Since the last call."""
        now = sum(map(self._seconds, psutil.Process().children(recursive=True)))
        passed = now - self._before
        self._before = now
        return passed * 1000

    @staticmethod
    def _seconds(process: psutil.Process) -> float:
        """Its own and that of its children that have ended."""
        try:
            return sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            return 0.0  # it has just ended: its parent has it


def report(found: list[dict[str, Any]], figure: str) -> None:
    """First and last 20 micro-batches, and the straight line through all."""
    values = [each[figure] for each in found][WARM_UP:]
    first, last = values[:WINDOW], values[-WINDOW:]
    slope = statistics.linear_regression(range(len(values)), values).slope
    print(
        f"{figure}: first {WINDOW} {statistics.fmean(first):.1f}, "
        f"last {WINDOW} {statistics.fmean(last):.1f}, median {statistics.median(values):.1f}, "
        f"most {max(values):.1f}; {100 * slope / statistics.fmean(values) * 100:+.1f} % in 100"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2000, help="of each stream a micro-batch")
    help_before = "micro-batches whose rows are there before the first one that counts"
    parser.add_argument("--before", type=int, default=0, help=help_before)
    parser.add_argument("--memory", default="16m")
    parser.add_argument("--workers", choices=("changed", "kept"), default="changed")
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        if arguments.spark:
            found = list(run_on_spark(Path(home), arguments))
        else:
            found = list(run(home, arguments))
    for figure in found[0]:
        if figure not in ("pointer", "results") and found[0][figure] == found[0][figure]:
            report(found, figure)


if __name__ == "__main__":
    main()
