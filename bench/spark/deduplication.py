"""Exact deduplication over full history: examples/deduplicate.py beside Spark's dropDuplicates.

    python -m bench.spark.deduplication --rows 2000000 --rounds 3

Each run is a process of its own with a fresh session of two cores and a checkpoint of its own; the
sides take turns. CPU seconds are those of the JVM and the Python workers while the query runs.
Results are checked with DuckDB: every id once, and on our side the row that came first.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from bench.common.child_process import spark_environment
from bench.common.measures import disk_bytes

SIDES = ("ours", "spark")
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
UNITS = {
    "wall_seconds": "wall time, s",
    "cpu_seconds": "CPU of JVM and workers, s",
    "last_batch_seconds": "last micro-batch, s of wall time",
    "jvm_peak_mb": "JVM, peak resident, MB",
    "workers_peak_mb": "Python workers together, peak resident, MB",
    "checkpoint_mb": "checkpoint, MB",
    "rows_out": "rows out",
}


def make_events(directory: Path, rows: int, batches: int) -> None:
    """``batches`` files; ids are 32 hexadecimal digits, each about 1.3 times in the whole."""
    directory.mkdir()
    rng = np.random.default_rng(1)
    step = -(-rows // batches)
    for number in range(batches):
        n = np.arange(number * step, min(rows, (number + 1) * step))
        keys = rng.integers(0, rows * 3 // 4, len(n)).astype(np.uint64)
        mixed = keys * np.uint64(0x9E3779B97F4A7C15)
        ids = [f"{a:016x}{b:016x}" for a, b in zip(mixed.tolist(), keys.tolist(), strict=True)]
        text = pa.array(np.char.mod("event of page %d", n % 997))
        table = pa.table({"id": ids, "n": n, "text": text})
        path = directory / f"{number:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_700_000_000 + number,) * 2)


class TreeMeter(threading.Thread):
    """CPU seconds and peak memory of this process's descendants: the JVM, its Python workers."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.jvm_peak = self.workers_peak = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.25):
            jvm, workers = self._resident()
            self.jvm_peak = max(self.jvm_peak, jvm)
            self.workers_peak = max(self.workers_peak, workers)

    def end(self) -> None:
        self._ended.set()
        self.join()

    def cpu_seconds(self) -> float:
        """So far, of those that have ended too."""
        total = 0.0
        for process in self._descendants():
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.NoSuchProcess:
                continue  # its parent counts it from now on
        return total

    def _resident(self) -> tuple[int, int]:
        """Bytes of the JVM and of all workers; what processes share counts in parts."""
        found = {True: 0, False: 0}
        for process in self._descendants():
            try:
                found[process.name() == "java"] += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
        return found[True], found[False]

    @staticmethod
    def _descendants() -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


def deduplicated(side: str, events: Any, memory: str) -> Any:
    if side == "spark":
        return events.dropDuplicates(["id"])
    from lsmstate.spark import State, deduplicate

    return deduplicate(events, "id", state=State(memory=memory))


def run_side(side: str, events: Path, home: Path, memory: str) -> dict[str, float]:
    """One query over all files, in this process."""
    from pyspark.sql import SparkSession

    from lsmstate.spark_integration.session.configure import configure

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.local.dir", str(home / "local"))
    )
    spark = (configure(builder) if side == "ours" else builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    schema = spark.read.parquet(str(events)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(events))
    meter = TreeMeter()
    before, started = meter.cpu_seconds(), time.perf_counter()
    meter.start()
    query = (
        deduplicated(side, stream, memory)
        .writeStream.option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(home / "out"))
    )
    query.awaitTermination()
    wall, cpu = time.perf_counter() - started, meter.cpu_seconds() - before
    meter.end()
    last = query.recentProgress[-1]["durationMs"]["triggerExecution"]
    spark.stop()
    return {
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "last_batch_seconds": last / 1e3,
        "jvm_peak_mb": meter.jvm_peak / 1e6,
        "workers_peak_mb": meter.workers_peak / 1e6,
        "checkpoint_mb": disk_bytes(str(home / "checkpoint")) / 1e6,
        "rows_out": checked_rows(side, events, home / "out"),
    }


def checked_rows(side: str, events: Path, out: Path) -> int:
    """How many rows came out; each id once, and none missing."""
    import duckdb

    with duckdb.connect() as db:
        firsts = f"SELECT id, min(n) FROM read_parquet('{events}/*.parquet') GROUP BY id"
        # Spark promises any row of an id, we the first.
        got = f"SELECT id, n FROM read_parquet('{out}/*.parquet')"
        if side == "spark":
            firsts, got = (f"SELECT id FROM ({query})" for query in (firsts, got))
        rows = db.execute(f"SELECT count(*) FROM ({got})").fetchone()
        for left, right in ((firsts, got), (got, firsts)):
            wrong = db.execute(f"{left} EXCEPT ALL {right} LIMIT 1").fetchall()
            assert wrong == [], f"{side}: {wrong}"
    assert rows is not None
    return int(rows[0])


def run_apart(side: str, events: Path, memory: str) -> dict[str, float]:
    """The same in a new process."""
    home = Path(tempfile.mkdtemp(prefix=f"dedup-{side}-", dir=events.parent))
    command = [
        sys.executable,
        "-m",
        "bench.spark.deduplication",
        "--side",
        side,
        "--memory",
        memory,
    ]
    try:
        done = subprocess.run(
            [*command, "--events", str(events), "--home", str(home)],
            env=spark_environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures
    finally:
        shutil.rmtree(home)


def show(found: dict[str, list[dict[str, float]]]) -> None:
    table = Table("median (least-most)", *SIDES)
    for name, title in UNITS.items():
        cells = []
        for side in SIDES:
            values = [run[name] for run in found[side]]
            cells.append(
                f"{statistics.median(values):,.1f} ({min(values):,.1f}-{max(values):,.1f})"
            )
        table.add_row(title, *cells)
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="64m", help="cap of a worker's state, on our side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(json.dumps(run_side(asked.side, asked.events, asked.home, asked.memory)))
        return
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="lsmstate-dedup-") as directory:
        events = Path(directory) / "events"
        make_events(events, asked.rows, asked.batches)
        for number in range(asked.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                found[side].append(run_apart(side, events, asked.memory))
                print(json.dumps({"round": number, "side": side, **found[side][-1]}), flush=True)
    show(found)


if __name__ == "__main__":
    main()
