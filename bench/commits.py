"""Commits of 10,000 rows onto a state, and opening the newest in another directory and process.

A commit is durable (fsync on both sides) and complete in itself: what it names can be copied
elsewhere and opened there. Ours: an attempt opened at the last pointer, appended to, sealed.
RocksDB: one database stays open; a checkpoint flushes its memtable (there is no log to write) and
hard-links its tables into a directory of their own.

What is due to be merged is merged before the first commit and, on the clock, after the last one;
and the commits bring half as many rows as the state had. So they pay for what they bring, for at
least one whole turn of the largest run, wherever merges fall.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
from engines import RocksEngine, RocksSetup
from layouts import LAYOUTS
from measures import CpuClock, Figures, Tally
from sides import OurSide, PeerSide, Side
from workloads import Workload

from lsmstate.options import Options

LEAST_COMMITS = 20

#: Below the run's directory: the state a hand-over opens (once it has been copied), and its name.
STATE = "state"
POINTER = "pointer"


def commit_ours(work: Workload, directory: str, memory_bytes: int) -> Figures:
    """Each commit by an attempt of its own, opened at the pointer of the one before."""
    options = Options(memory_bytes=memory_bytes, sync="commit")
    path = os.path.join(directory, STATE)
    with closing(OurSide.attempt(path, work, options, None, 0)) as side:
        for rows, keys in work.batches():
            side.append(0, rows, keys)
        side.merge_due()
        pointer = side.commit()
    walls, clock = [], CpuClock()
    for number, (rows, keys) in enumerate(clock.each(_more(work)), start=1):
        start = time.perf_counter()
        with closing(OurSide.attempt(path, work, options, pointer, number)) as side:
            side.append(0, rows, keys)
            pointer = side.commit()
        walls.append(time.perf_counter() - start)
    with closing(OurSide.attempt(path, work, options, pointer, number + 1)) as side:
        side.merge_due()
        pointer = side.commit()
    seconds = clock.seconds()
    with open(os.path.join(directory, POINTER), "w") as file:
        file.write(pointer)
    return _figures(seconds, walls)


def commit_rocks(work: Workload, directory: str, memory_bytes: int, setup: RocksSetup) -> Figures:
    """Each commit a checkpoint of one database, which stays open; merges are waited for."""
    live = os.path.join(directory, "live")
    os.makedirs(live)
    engine = RocksEngine(live, setup, memory_bytes, work.key_bytes, log=False)
    with closing(PeerSide(work, 1, engine, LAYOUTS[setup.layout]())) as side:
        for rows, keys in work.batches():
            side.append(0, rows, keys)
        side.settle()
        walls, clock = [], CpuClock()
        for number, (rows, keys) in enumerate(clock.each(_more(work)), start=1):
            start = time.perf_counter()
            side.append(0, rows, keys)
            name = f"checkpoint-{number}"
            engine.checkpoint(os.path.join(directory, name))
            walls.append(time.perf_counter() - start)
        side.settle()
        seconds = clock.seconds()
    os.rename(os.path.join(directory, name), os.path.join(directory, STATE))
    return _figures(seconds, walls)


def hand_over_ours(work: Workload, directory: str, memory_bytes: int) -> Figures:
    """Open the copy at the pointer as the next batch's attempt; answer 1,000 keys, then 10,000."""
    with open(os.path.join(directory, POINTER)) as file:
        pointer = file.read()
    path = os.path.join(directory, STATE)
    options = Options(memory_bytes=memory_bytes, sync="commit")
    clock = Lap()
    number = commits_of(work) + 2
    return _answer(work, OurSide.attempt(path, work, options, pointer, number), clock)


def hand_over_rocks(
    work: Workload, directory: str, memory_bytes: int, setup: RocksSetup
) -> Figures:
    """Open the copied checkpoint as a database of this process's own; answer the same keys."""
    path = os.path.join(directory, STATE)
    clock = Lap()
    engine = RocksEngine(path, setup, memory_bytes, work.key_bytes, log=False)
    return _answer(work, PeerSide(work, 1, engine, LAYOUTS[setup.layout]()), clock)


def commits_of(work: Workload) -> int:
    """How many commits are measured."""
    return max(LEAST_COMMITS, work.rows // 2 // work.batch_rows)


def _more(work: Workload) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Further batches with keys of the same range."""
    rng = np.random.default_rng(17)
    rows_in_all = commits_of(work) * work.batch_rows
    further = Workload(rows_in_all, work.key, work.skew, work.batch_rows)
    for rows, _ in further.numbered_batches(seed=19):
        numbers = work.key_numbers(rng, work.batch_rows)
        yield rows.set_column(0, rows.schema.field(0), pa.array(numbers)), work.key_batch(numbers)


def _figures(seconds: float, walls: list[float]) -> Figures:
    return {
        "commit_cpu_ms": seconds * 1e3 / len(walls),
        "commit_ms": statistics.median(walls) * 1e3,
        "longest_commit_ms": max(walls) * 1e3,
    }


class Lap:
    """Milliseconds since its making, of wall time and of CPU."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), CpuClock()

    def figures(self, name: str) -> Figures:
        wall = time.perf_counter() - self._wall
        return {f"{name}_ms": wall * 1e3, f"{name}_cpu_ms": self._cpu.seconds() * 1e3}


def _answer(work: Workload, side: Side, lap: Lap) -> Figures:
    """``side`` has just been opened, since ``lap`` was made."""
    figures = lap.figures("open")
    many = work.hits(1)[0]
    few = many.slice(many.num_rows // 2, 1000)
    for name, keys in (("1k", few), ("10k", many)):
        lap, tally = Lap(), Tally(work)
        found = list(side.probe(0, keys))
        figures |= lap.figures(f"answer_{name}")
        for match in found:
            tally.add(match, keys)
    side.close()
    return figures | {"rows_found": tally.rows, "digest": tally.digest}
