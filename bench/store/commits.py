"""Commits of 10,000 rows onto a state, and opening the newest in another directory and process.

A commit is durable (fsync on both sides) and complete in itself: what it names can be copied
elsewhere and opened there. Ours: an attempt opened at the last pointer, appended to, sealed.
RocksDB: one database stays open; a checkpoint flushes its memtable (there is no log to write) and
hard-links its tables into a directory of their own.

What is due to be merged is merged before the first commit and, on the clock, after the last one;
and the commits bring as many rows as the state had. So they pay for what they bring, for at least
one whole turn of the largest run, wherever merges fall.

What is handed over is another state: as many rows as the workload has, of which the last third came
in commits of 10,000, as the last of them left it.
"""

import os
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice

import numpy as np
import pyarrow as pa

from bench.common.measures import CpuClock, Figures, Tally
from bench.common.workloads import Workload
from bench.store.engines import RocksEngine, RocksSetup
from bench.store.layouts import LAYOUTS
from bench.store.sides import OurSide, PeerSide, Side
from lsmstate.options import Options

LEAST_COMMITS = 20
#: Above the number of every batch that was committed to the state which is handed over.
NEXT_BATCH = 1 << 20

#: Rows and their keys.
Batch = tuple[pa.RecordBatch, pa.RecordBatch]

#: Below the run's directory: what takes the commits that are measured; the state a hand-over opens
#: (once it has been copied), and its name.
LIVE = "live"
STATE = "state"
POINTER = "pointer"


def commit_ours(work: Workload, directory: str, memory_bytes: int) -> Figures:
    """Each commit by an attempt of its own, opened at the pointer of the one before."""
    options = Options(memory_bytes=memory_bytes, sync="commit")
    bucket = Bucket(os.path.join(directory, LIVE), work, options)
    bucket.commit(work.batches())
    bucket.commit([], merge_due=True)  # also what the commit's own run made due
    bucket.flushed_bytes = bucket.merged_bytes = 0
    walls, alone, clock = [], [], CpuClock("commit")
    for batch in clock.each(further_batches(work)):
        start, cpu, merged = time.perf_counter(), time.process_time(), bucket.merged_bytes
        bucket.commit([batch])
        walls.append(time.perf_counter() - start)
        if bucket.merged_bytes == merged:
            alone.append(time.process_time() - cpu)
    bucket.commit([], merge_due=True)
    seconds = clock.seconds()
    own = {"commit_merged_x": bucket.merged_bytes / bucket.flushed_bytes}
    if alone:
        own["commit_alone_ms"] = statistics.median(alone) * 1e3
    handed = Bucket(os.path.join(directory, STATE), work, options)
    handed.commit(_earlier(work))
    for batch in _later(work):
        handed.commit([batch])
    with open(os.path.join(directory, POINTER), "w") as file:
        file.write(str(handed.pointer))
    return _figures(seconds, walls) | own


class Bucket:
    """One bucket of ours and its newest commit."""

    def __init__(self, path: str, work: Workload, options: Options) -> None:
        self.pointer: str | None = None
        #: Of files, by its commits so far.
        self.flushed_bytes = self.merged_bytes = 0
        self._path, self._work, self._options = path, work, options
        self._number = 0

    def commit(self, batches: Iterable[Batch], *, merge_due: bool = False) -> None:
        """By an attempt that is opened at the last commit, does nothing else and is closed."""
        with closing(
            OurSide.attempt(self._path, self._work, self._options, self.pointer, self._number)
        ) as side:
            for rows, keys in batches:
                side.append(0, rows, keys)
            if merge_due:
                side.merge_due()
            self.pointer = side.commit()
            writes = side.writes()
        self.flushed_bytes += writes.flushed_bytes
        self.merged_bytes += writes.merged_bytes
        self._number += 1


def commit_rocks(work: Workload, directory: str, memory_bytes: int, setup: RocksSetup) -> Figures:
    """Each commit a checkpoint of one database, which stays open; merges are waited for."""
    with open_database(os.path.join(directory, LIVE), work, memory_bytes, setup) as database:
        database.append(work.batches())
        database.side.settle()
        walls, clock = [], CpuClock("commit")
        for batch in clock.each(further_batches(work)):
            start = time.perf_counter()
            database.append([batch])
            database.checkpoint()
            walls.append(time.perf_counter() - start)
        database.side.settle()
        seconds = clock.seconds()
    with open_database(os.path.join(directory, "handed"), work, memory_bytes, setup) as database:
        database.append(_earlier(work))
        for batch in _later(work):
            database.append([batch])
            newest = database.checkpoint()
    os.rename(newest, os.path.join(directory, STATE))
    return _figures(seconds, walls)


class Database:
    """One database of theirs, and its checkpoints beside it."""

    def __init__(self, path: str, engine: RocksEngine, side: PeerSide) -> None:
        self.side = side
        self._path, self._engine = path, engine
        self._checkpoints = 0

    def append(self, batches: Iterable[Batch]) -> None:
        for rows, keys in batches:
            self.side.append(0, rows, keys)

    def checkpoint(self) -> str:
        """The directory of a new one."""
        self._checkpoints += 1
        path = f"{self._path}-checkpoint-{self._checkpoints}"
        self._engine.checkpoint(path)
        return path


@contextmanager
def open_database(
    path: str, work: Workload, memory_bytes: int, setup: RocksSetup
) -> Iterator[Database]:
    os.makedirs(path)
    engine = RocksEngine(path, setup, memory_bytes, work.key_bytes, log=False)
    with closing(PeerSide(work, 1, engine, LAYOUTS[setup.layout]())) as side:
        yield Database(path, engine, side)


def hand_over_ours(work: Workload, directory: str, memory_bytes: int) -> Figures:
    """Open the copy at the pointer as the next batch's attempt; answer 1,000 keys, then 10,000."""
    with open(os.path.join(directory, POINTER)) as file:
        pointer = file.read()
    path = os.path.join(directory, STATE)
    options = Options(memory_bytes=memory_bytes, sync="commit")
    clock = Lap("open")
    return _answer(work, OurSide.attempt(path, work, options, pointer, NEXT_BATCH), clock)


def hand_over_rocks(
    work: Workload, directory: str, memory_bytes: int, setup: RocksSetup
) -> Figures:
    """Open the copied checkpoint as a database of this process's own; answer the same keys."""
    path = os.path.join(directory, STATE)
    clock = Lap("open")
    engine = RocksEngine(path, setup, memory_bytes, work.key_bytes, log=False)
    return _answer(work, PeerSide(work, 1, engine, LAYOUTS[setup.layout]()), clock)


def commits_of(work: Workload) -> int:
    """How many commits are measured."""
    return max(LEAST_COMMITS, work.rows // work.batch_rows)


def _earlier(work: Workload) -> Iterator[Batch]:
    """The first two thirds of the workload's batches."""
    return islice(work.batches(), _count_earlier(work))


def _later(work: Workload) -> Iterator[Batch]:
    """The others, one at least."""
    return islice(work.batches(), _count_earlier(work), None)


def _count_earlier(work: Workload) -> int:
    return (work.rows - 1) // work.batch_rows * 2 // 3


def further_batches(work: Workload) -> Iterator[Batch]:
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
    """Milliseconds on the clock since its making, of wall time and of CPU."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.clock = CpuClock(name)

    def figures(self) -> Figures:
        cpu = self.clock.seconds()
        wall = sum(end - start for start, end in self.clock.spans)
        return {f"{self._name}_ms": wall * 1e3, f"{self._name}_cpu_ms": cpu * 1e3}


def _answer(work: Workload, side: Side, lap: Lap) -> Figures:
    """``side`` has just been opened, since ``lap`` was made. Pieces are dropped as they are taken,
    as a join drops them: nobody keeps 110 MB of rows beside a store that is held to 64."""
    figures = lap.figures()
    many = work.hits(1)[0]
    few = many.slice(many.num_rows // 2, 1000)
    tally = Tally(work)
    for name, keys in (("1k", few), ("10k", many)):
        lap = Lap(f"answer_{name}")
        for match in side.probe(0, keys):
            with lap.clock.off():
                tally.add(match, keys)
        figures |= lap.figures()
    side.close()
    return figures | {"rows_found": tally.rows, "digest": tally.digest}
