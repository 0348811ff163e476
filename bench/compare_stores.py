"""Side by side: the same work on each backend, A B A B, medians and ratios of CPU time.

    python bench/compare_stores.py --rows 1000000 --memory 64m

CPU seconds are those of all threads of a fresh process per run (RocksDB's background work
included); both sides start from Arrow and end with Arrow in memory; what was read is hashed and
compared between the backends. The machine and the page cache (warm: the files were just written)
are stated at the top.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from workloads import Workload

from lsmstate.backends import open_attempt, open_store
from lsmstate.options import Options, parse_bytes
from lsmstate.store import StateStore

PROBE_BATCHES = 30


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def digest(rows: pa.RecordBatch) -> int:
    """Independent of the order of rows: a sum over two columns."""
    total = pc.sum(rows.column(1)).as_py() or 0
    return (total * 31 + rows.num_rows) & 0xFFFFFFFFFFFFFFFF


def settle(store: Any, backend: str) -> None:
    """Until no merge is due: part of what appending costs on either side."""
    if backend == "lsm":
        store.compact()
        return
    names = ("num-running-compactions", "num-running-flushes", "compaction-pending")
    while backend == "rocksdb" and any(store._property(f"rocksdb.{name}") for name in names):
        time.sleep(0.01)


def probe_all(store: StateStore, batches: list[pa.RecordBatch]) -> tuple[int, int, int]:
    """(keys asked, rows read, digest)."""
    keys = rows = found = 0
    for batch in batches:
        probe = store.probe("rows", batch)
        keys += batch.num_rows
        for match in probe.fetch(np.flatnonzero(probe.counts), 1 << 20):
            rows += match.rows.num_rows
            found = (found + digest(match.rows)) & 0xFFFFFFFFFFFFFFFF
    return keys, rows, found


def measure(work: Workload, backend: str, memory: int) -> dict[str, float]:
    """One run in this process: append everything, probe, commit, open elsewhere."""
    directory = tempfile.mkdtemp(prefix="lsmstate-bench-")
    options = Options(memory_bytes=memory)
    result: dict[str, float] = {}
    batches = list(work.batches())
    hits, misses = work.hits(PROBE_BATCHES), work.misses(PROBE_BATCHES)
    idle = resident_bytes()
    try:
        store = open_store(directory, [work.schema], backend=backend, options=options)
        longest, start = 0.0, cpu_seconds()
        for rows, keys in batches:
            before = time.perf_counter()
            store.append("rows", rows, keys)
            longest = max(longest, time.perf_counter() - before)
        store.commit()
        settle(store, backend)
        result["append_us"] = (cpu_seconds() - start) * 1e6 / work.rows
        result["longest_append_ms"] = longest * 1e3
        result["disk_mb"] = disk_bytes(directory) / 1e6
        probe_all(store, hits[:3])
        start = cpu_seconds()
        keys_asked, rows_read, found = probe_all(store, hits)
        result["hit_us"] = (cpu_seconds() - start) * 1e6 / keys_asked
        result["rows_read"], result["digest"] = rows_read, found
        start = cpu_seconds()
        keys_asked, rows_read, _ = probe_all(store, misses)
        result["miss_us"] = (cpu_seconds() - start) * 1e6 / keys_asked
        assert rows_read == 0
        result["growth_mb"] = (resident_peak() - idle) / 1e6
        store.close()
    finally:
        shutil.rmtree(directory)
    result.update(measure_commit(work, batches, backend, options))
    return result


def measure_commit(
    work: Workload,
    batches: list[tuple[pa.RecordBatch, pa.RecordBatch]],
    backend: str,
    options: Options,
) -> dict[str, float]:
    """Attempts over one state: a commit of 10,000 rows, and opening it for the next batch."""
    directory = tempfile.mkdtemp(prefix="lsmstate-bench-")
    pointer = None
    commits, opens = [], []
    try:
        cut = max(1, len(batches) - 6)
        groups = [batches[:cut], *([batch] for batch in batches[cut:])]
        for number, group in enumerate(groups):
            before = time.perf_counter()
            store = open_attempt(
                directory,
                [work.schema],
                backend=backend,
                pointer=pointer,
                batch_id=number,
                attempt_id="bench",
                options=options,
            )
            store.probe("rows", group[0][1])
            opens.append(time.perf_counter() - before)
            before = time.perf_counter()
            for rows, keys in group:
                store.append("rows", rows, keys)
            pointer = store.commit()
            commits.append(time.perf_counter() - before)
            store.close()
    finally:
        shutil.rmtree(directory)
    return {
        "commit_10k_ms": statistics.median(commits[1:]) * 1e3 if commits[1:] else 0.0,
        "open_and_probe_ms": statistics.median(opens[1:]) * 1e3 if opens[1:] else 0.0,
    }


def resident_peak() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resident_bytes()


def disk_bytes(directory: str) -> int:
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(directory)
        for name in names
    )


def run_child(arguments: argparse.Namespace, backend: str) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--child",
        backend,
        "--rows",
        str(arguments.rows),
        "--memory",
        arguments.memory,
        "--key",
        arguments.key,
        "--skew",
        arguments.skew,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="64m")
    parser.add_argument("--key", choices=("int", "string"), default="int")
    parser.add_argument("--skew", choices=("uniform", "zipf"), default="uniform")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", default="lsm,rocksdb")
    parser.add_argument("--child", default="")
    arguments = parser.parse_args()
    work = Workload("store", arguments.rows, arguments.key, arguments.skew)
    if arguments.child:
        print(json.dumps(measure(work, arguments.child, parse_bytes(arguments.memory))))
        return
    backends = arguments.backends.split(",")
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for backend in backends:
            runs[backend].append(run_child(arguments, backend))
    report(arguments, backends, runs)


def report(
    arguments: argparse.Namespace, backends: list[str], runs: dict[str, list[dict[str, float]]]
) -> None:
    console = Console()
    console.print(
        f"{arguments.rows:,} rows, {arguments.key} keys, {arguments.skew}, cap {arguments.memory}, "
        f"median of {arguments.rounds}; {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}; page cache warm"
    )
    digests = {run[key] for rows in runs.values() for run in rows for key in ("digest",)}
    if len(digests) != 1:
        sys.exit(f"the backends read different rows: {digests}")
    table = Table("figure", *backends, "ratio")
    for figure in runs[backends[0]][0]:
        if figure in ("digest",):
            continue
        medians = [statistics.median(run[figure] for run in runs[b]) for b in backends]
        ratio = f"{medians[-1] / medians[0]:.2f}" if medians[0] else ""
        table.add_row(figure, *(f"{median:,.3f}" for median in medians), ratio)
    console.print(table)


if __name__ == "__main__":
    main()
