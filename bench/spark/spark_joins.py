"""The paper's query on Spark: our join beside Spark's own chain of stream-stream joins.

    make peers                                          # scale 1, every side once
    python -m bench.spark.spark_joins --scale 5 --rounds 1 --sides ours,best,best-64m --most 1800
    python -m bench.spark.spark_joins --rows 50 --batches 40 --sides ours,best-4   # small batches

The four streams come in 10 micro-batches; results are counted and thrown away (noop sink). Each run
is a process of its own with a fresh session of two cores and its own checkpoint; the sides take
turns. CPU seconds are those of the JVM and the Python workers, start-up and code generation
included, and beside them those after the session was there. A run that takes longer than ``--most``
seconds is stopped, and the table says so.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from bench.common.child_process import ended_in_time, spark_environment
from bench.common.measures import disk_bytes
from bench.spark.deduplication import ROCKSDB, TreeMeter
from bench.spark.kept_groups import KeptGroups
from lsmstate.join import State
from lsmstate.spark_integration.catalyst.catalyst import jvm_of
from lsmstate.spark_integration.catalyst.progress_events import java_listener
from lsmstate.spark_integration.session.configure import ARROW_OPTIONS, JIT_OPTIONS, configure

ROOT = Path(__file__).parents[2]
BATCHES = 10
#: The columns that are equal in a result, by stream.
KEYS = {
    "sr": "sr_addr_sk",
    "cu": "c_current_addr_sk",
    "wr": "wr_refunded_addr_sk",
    "cr": "cr_refunded_addr_sk",
}
_STATE = "spark.sql.streaming.stateStore.rocksdb"
_BOUNDED = {f"{_STATE}.boundedMemoryUsage": "true", f"{_STATE}.maxMemoryUsageMB": "64"}
_FORMAT_4 = {"spark.sql.streaming.join.stateFormatVersion": "4"}
#: What `configure` tells the JVM's compiler, which spares a query of Spark alone some time as well.
_JIT = {"spark.driver.defaultJavaOptions": JIT_OPTIONS}


@dataclass(frozen=True)
class Side:
    """One way to run the query; ``order`` is that of Spark's joins, None for our own operator."""

    title: str
    order: tuple[str, ...] | None
    settings: dict[str, str] = field(default_factory=dict)
    sums: str = ""
    """Whether results are aggregated (``SUMS``): "inside" the join, or "above" it."""


#: What is aggregated of the results, in update mode.
SUMS = {"amount": "sr_return_amt", "web": "wr_return_amt", "catalog": "cr_return_amount"}
GROUP = "c_birth_country"
#: The orders with the fewest and the most intermediate rows.
_BEST = ("cu", "wr", "cr", "sr")
_WORST = ("cr", "sr", "cu", "wr")
SIDES = {
    "ours": Side("multiway_join, 64 MB", None),
    "best": Side("Spark, best order", _BEST),
    "best-4": Side("Spark, best order, state format 4", _BEST, _FORMAT_4),
    "best-jit": Side("Spark, best order, our JVM options", _BEST, _JIT),
    "best-4-jit": Side("Spark, state format 4, our JVM options", _BEST, _FORMAT_4 | _JIT),
    "best-64m": Side("Spark, best order, bounded memory 64 MB", _BEST, _BOUNDED),
    "worst": Side("Spark, worst order", _WORST),
    "worst-64m": Side("Spark, worst order, bounded memory 64 MB", _WORST, _BOUNDED),
    "sums": Side("count and three sums inside multiway_join, 64 MB", None, sums="inside"),
    "sums-above": Side("count and three sums above multiway_join, 64 MB", None, sums="above"),
    "sums-best": Side("count and three sums, Spark, best order", _BEST, sums="above"),
    "sums-jit": Side("count and three sums, Spark, our JVM options", _BEST, _JIT, sums="above"),
}
#: Those of the paper's query alone.
PLAIN = tuple(name for name, side in SIDES.items() if not side.sums)
#: What is shown of runs with ``--rows``.
SMALL_COLUMNS = {
    "first_batch_seconds": "first micro-batch, s",
    "first_batch_cpu": "its CPU s",
    "small_batch_seconds": "micro-batch of the last half, s",
    "small_batch_cpu": "its CPU s",
    "query_cpu_seconds": "CPU s after start-up",
    "jvm_peak_mb": "JVM MB",
    "workers_peak_mb": "workers MB",
}
COLUMNS = {
    "cpu_seconds": "CPU s",
    "query_cpu_seconds": "after start-up",
    "wall_seconds": "wall s",
    "second_batch_seconds": "micro-batch 2, s",
    "last_batch_seconds": "the last, s",
    "output_growth": "rows out, last / 2nd",
    "state_rows": "state rows",
    "checkpoint_mb": "checkpoint MB",
    "jvm_peak_mb": "JVM MB",
    "workers_peak_mb": "workers MB",
}


def run_side(name: str, scale: float, home: Path, rows: int, batches: int) -> dict[str, float]:
    """One query over all files, in this process; or over ``rows`` of each stream a micro-batch."""
    from pyspark.sql import functions as F

    from lsmstate.spark_integration.demo.query import read_streams
    from lsmstate.spark_integration.demo.tpcds import stream_files

    side = SIDES[name]
    files = stream_files(ROOT / ".data", scale, BATCHES)
    if rows:
        files = few_rows(files, home / "few", rows, batches)
    meter = TreeMeter()
    meter.start()
    spark = session(home, side.settings, is_ours=side.order is None)
    streams = read_streams(spark, files)
    watch = CpuAtProgress(meter, jvm_of(spark))
    spark.streams.addListener(watch)
    begun, started = meter.cpu_seconds(), time.perf_counter()
    result, groups = joined(streams, side), kept_sums(side)
    if side.sums:
        writer = summed(result, side).writeStream.foreachBatch(groups.keep)
        writer = writer.outputMode(groups.output_mode)
    else:
        result = result.observe("out", F.count(F.lit(1)).alias("rows"))
        writer = result.writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    wall, cpu = time.perf_counter() - started, meter.cpu_seconds()
    meter.end()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    spark.stop()
    seconds = [p["durationMs"]["triggerExecution"] / 1e3 for p in progress]
    if side.sums:
        groups.check(sums_by_duckdb(files))
        out = groups.changed
    else:
        out = [p["observedMetrics"]["out"]["rows"] for p in progress]
    half = len(watch.seconds) // 2
    late = watch.seconds[half:]
    return {
        "first_batch_seconds": seconds[0],
        "first_batch_cpu": watch.seconds[0] - begun,
        "small_batch_seconds": statistics.median(seconds[half:]),
        "small_batch_cpu": (late[-1] - late[0]) / max(1, len(late) - 1),
        "cpu_seconds": cpu,
        "query_cpu_seconds": cpu - begun,
        "wall_seconds": wall,
        "second_batch_seconds": seconds[1],
        "last_batch_seconds": seconds[-1],
        "output_growth": out[-1] / max(1, out[1]),
        "state_rows": state_rows(progress, side),
        "checkpoint_mb": disk_bytes(str(home / "checkpoint")) / 1e6,
        "jvm_peak_mb": meter.jvm_peak / 1e6,
        "workers_peak_mb": meter.workers_peak / 1e6,
        "rows_out": sum(out),
    }


def session(home: Path, settings: dict[str, str], *, is_ours: bool) -> Any:
    """A session of two cores, for our joins or for Spark's own."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    of_both = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": ARROW_OPTIONS,  # Spark's own side has no use of Arrow
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.local.dir": str(home / "local"),
    }
    for key, value in {**of_both, **settings}.items():
        builder = builder.config(key, value)
    if is_ours:
        builder = configure(builder)  # workers are forked with their imports done
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def few_rows(files: Any, home: Path, rows: int, batches: int) -> Any:
    """The first rows of each stream, so many to a file."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    from lsmstate.spark_integration.demo.query import ALIASES
    from lsmstate.spark_integration.demo.tpcds import StreamFiles

    found = StreamFiles(home, files.scale, batches)
    for table in ALIASES.values():
        few = ds.dataset(str(files.table(table))).head(rows * batches)
        found.table(table).mkdir(parents=True)
        for number in range(batches):
            part = few.slice(number * rows, rows)
            pq.write_table(part, found.table(table) / f"{number:05d}.parquet")
    return found


class CpuAtProgress(StreamingQueryListener):
    """CPU seconds by the end of each micro-batch.

    It reads the JVM's own progress. PySpark's copy would cost .1 to .2 CPU s a micro-batch.
    """

    def __init__(self, meter: TreeMeter, jvm: Any) -> None:
        self._meter = meter
        self._java = java_listener(jvm, self, self._progressed)
        self.seconds: list[float] = []

    @property
    def _jlistener(self) -> Any:
        return self._java

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is noted."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Nothing is noted."""

    def _progressed(self, progress: Any) -> None:
        """Note the CPU of a micro-batch that had rows."""
        if progress.numInputRows():
            self.seconds.append(self._meter.cpu_seconds())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing is noted."""


def joined(streams: dict[str, Any], side: Side) -> Any:
    """The query's result, by our operator or by a chain of Spark's joins."""
    if side.order is None:
        from lsmstate.spark import multiway_join

        on = {name: [KEYS[name]] for name in streams}
        return multiway_join(streams, on=on, state=State(memory="64m"))
    first, *rest = side.order
    result = streams[first]
    for name in rest:
        result = result.join(streams[name], result[KEYS[first]] == streams[name][KEYS[name]])
    return result


def kept_sums(side: Side) -> KeptGroups:
    """A count and sums by a customer's country."""
    return KeptGroups(1, None if side.order is None else _sums)


def summed(result: Any, side: Side) -> Any:
    """What is written into ``kept_sums``."""
    from lsmstate.spark import to_multiway

    if side.order is not None:  # Spark prunes nothing below foreachBatch by itself
        return result.select(GROUP, *SUMS.values())
    found = _sums(result)
    return to_multiway(found).dataframe if side.sums == "inside" else found


def _sums(result: Any) -> Any:
    from pyspark.sql import functions as F

    sums = [F.sum(column).alias(name) for name, column in SUMS.items()]
    return result.groupBy(GROUP).agg(F.count("*").alias("n"), *sums)


def sums_by_duckdb(files: Any) -> list[tuple[Any, ...]]:
    """The same of all files at once."""
    import duckdb

    from lsmstate.spark_integration.demo.query import batch_sql

    sums = ", ".join(f"sum({column})" for column in SUMS.values())
    sql = f"SELECT {GROUP}, count(*), {sums} FROM ({batch_sql(files)}) GROUP BY 1"
    return duckdb.sql(sql).fetchall()


def state_rows(progress: list[Any], side: Side) -> int:
    """Rows that are kept: by Spark's own count, or, of ours, those that came in."""
    if side.order is None:
        from lsmstate.spark import metrics_of

        return sum(found.rows_in for found in map(metrics_of, progress) if found is not None)
    return sum(operator["numRowsTotal"] for operator in progress[-1]["stateOperators"])


def run_apart(
    side: str, scale: float, most: float, rows: int, batches: int
) -> dict[str, float] | None:
    """The same in a new process; None where it has not ended after ``most`` seconds."""
    home = Path(tempfile.mkdtemp(prefix=f"peers-{side}-"))
    command = [
        sys.executable,
        "-m",
        "bench.spark.spark_joins",
        "--side",
        side,
        *("--scale", f"{scale:g}", "--rows", str(rows), "--batches", str(batches)),
    ]
    try:
        ended = ended_in_time([*command, "--home", str(home)], most, spark_environment())
        if ended is None:
            return None
        figures: dict[str, float] = json.loads(ended[0].splitlines()[-1])
        return figures
    finally:
        shutil.rmtree(home, ignore_errors=True)  # one that was stopped may still be writing


def show(
    found: dict[str, list[dict[str, float]]], rounds: int, most: float, columns: dict[str, str]
) -> None:
    """A Markdown table of medians; the ratio is of CPU after start-up, Spark's over ours."""
    print("| side | " + " | ".join(columns.values()) + " | ratio |")
    print("|---|" + "---|" * (len(columns) + 1))
    ours = _median(found.get("ours") or found.get("sums") or [], "query_cpu_seconds")
    for name, runs in found.items():
        if not runs:
            print(f"| {SIDES[name].title} | not ended in {most:g} s" + " | " * len(columns) + " |")
            continue
        cells = [f"{_median(runs, column):,.2f}" for column in columns]
        stopped = "" if len(runs) == rounds else f", {rounds - len(runs)} of {rounds} not ended"
        ratio = _median(runs, "query_cpu_seconds") / ours if ours else float("nan")
        print(f"| {SIDES[name].title}{stopped} | {' | '.join(cells)} | {ratio:.2f} |")


def _median(runs: list[dict[str, float]], column: str) -> float:
    return statistics.median(run[column] for run in runs) if runs else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", default=",".join(PLAIN))
    parser.add_argument("--most", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--rows", type=int, default=0, help="of each stream a micro-batch; 0: all")
    parser.add_argument("--batches", type=int, default=40, help="micro-batches with --rows")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(json.dumps(run_side(asked.side, asked.scale, asked.home, asked.rows, asked.batches)))
        return
    names = asked.sides.split(",")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(asked.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            run = run_apart(name, asked.scale, asked.most, asked.rows, asked.batches)
            print(json.dumps({"side": name, **(run or {})}), file=sys.stderr, flush=True)
            if run is not None:
                found[name].append(run)
    rows = {run["rows_out"] for runs in found.values() for run in runs}
    assert len(rows) <= 1, f"the sides give different numbers of rows: {rows}"
    show(found, asked.rounds, asked.most, SMALL_COLUMNS if asked.rows else COLUMNS)


if __name__ == "__main__":
    main()
