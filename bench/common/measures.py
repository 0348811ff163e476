"""What is measured of one side, each in a fresh process: the store, the join loop, the commits.

CPU seconds are those of all threads of the process, until no merge is due; making the data and
hashing the results happen off the clock. Every figure that is not of the side's own making
(digests, rows found) must be equal on all sides; compare_stores.py checks that.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from bench.common.workloads import GAP, Workload, digest
from bench.store.sides import Match, Side

#: Batches of 10,000 draws from the keys asked for, after some that are not counted. Fewer of skewed
#: keys: one batch of theirs finds most of the rows.
PROBES = {"uniform": 30, "zipf": 4}
WARM_UP = {"uniform": 3, "zipf": 1}

#: What must agree on all sides.
CHECKED = ("rows_found", "digest")

T = TypeVar("T")
Figures = dict[str, float]
#: (directory, streams) -> a new store in it.
Opener = Callable[[str, int], Side]


class CpuClock:
    """CPU seconds of the process since its making, without what was spent off the clock.

    ``made`` are those of this process; ``spans`` when this thread was on the clock, (from, to) in
    seconds of ``time.monotonic``, of which ``seconds`` ends the last."""

    made: ClassVar[list["CpuClock"]] = []

    def __init__(self, name: str) -> None:
        self.name = name
        self.spans: list[tuple[float, float]] = []
        self.made.append(self)
        self._on = time.monotonic()
        self._start = time.process_time()
        self._off = 0.0

    @contextmanager
    def off(self) -> Iterator[None]:
        """This thread's time in here does not count; that of other threads does."""
        start = time.thread_time()
        self._end_span()
        yield
        self._on = time.monotonic()
        self._off += time.thread_time() - start

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items, made off the clock."""
        iterator = iter(items)
        while True:
            with self.off():
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def seconds(self) -> float:
        self._end_span()
        return time.process_time() - self._start - self._off

    def _end_span(self) -> None:
        now = time.monotonic()
        self.spans.append((self._on, now))
        self._on = now


class Tally:
    """Rows found, hashed together with the keys they were found under."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        self.rows = 0
        self.digest = 0

    def add(self, match: Match, keys: pa.RecordBatch) -> None:
        numbers = match.rows.column(0).to_numpy()
        asked = self._work.values_of(keys)[match.positions]
        assert np.array_equal(GAP * numbers, asked), "rows came back under other keys"
        self.rows += match.rows.num_rows
        self.digest = (self.digest + digest(match.rows)) & 0xFFFFFFFFFFFFFFFF


def measure_store(open_side: Opener, work: Workload, directory: str) -> Figures:
    """Append everything, ask for keys that are there and for keys that are not, merge all."""
    figures: Figures = {}
    idle = resident_peak()
    side = open_side(directory, 1)
    longest, clock = 0.0, CpuClock("append")
    for rows, keys in clock.each(work.batches()):
        before = time.perf_counter()
        side.append(0, rows, keys)
        longest = max(longest, time.perf_counter() - before)
    side.settle()
    figures["append_us"] = clock.seconds() * 1e6 / work.rows
    figures["append_raw_us"] = (clock.seconds() - side.conversion_seconds) * 1e6 / work.rows
    figures["longest_append_ms"] = longest * 1e3
    figures["settled_at"] = time.time()
    figures["disk_mb"] = disk_bytes(directory) / 1e6
    tally = Tally(work)
    figures |= _probes(side, work, tally, "")
    figures["growth_mb"] = (resident_peak() - idle) / 1e6
    clock = CpuClock("merge all")
    side.merge_all()
    figures["merge_all_us"] = clock.seconds() * 1e6 / work.rows
    figures |= _probes(side, work, tally, "merged_")
    figures["rows_found"], figures["digest"] = tally.rows, tally.digest
    side.close()
    figures["disk_merged_mb"] = disk_bytes(directory) / 1e6
    return figures


def _probes(side: Side, work: Workload, tally: Tally, when: str) -> Figures:
    """Hits and misses, us of CPU a key, after a warm-up."""
    figures: Figures = {}
    _probe(side, work.hits(WARM_UP[work.skew]), Tally(work), "warm-up")
    for name, batches in (("hit", work.hits(PROBES[work.skew])), ("miss", work.misses(30))):
        converting = side.conversion_seconds
        seconds = _probe(side, batches, tally, f"{when}{name}")
        asked = sum(batch.num_rows for batch in batches)
        figures[f"{when}{name}_us"] = seconds * 1e6 / asked
        raw = seconds - (side.conversion_seconds - converting)
        figures[f"{when}{name}_raw_us"] = raw * 1e6 / asked
    return figures


def _probe(side: Side, batches: list[pa.RecordBatch], tally: Tally, name: str) -> float:
    clock = CpuClock(name)
    for batch in batches:
        for match in side.probe(0, batch):
            with clock.off():
                tally.add(match, batch)
    return clock.seconds()


def measure_join(open_side: Opener, work: Workload, directory: str) -> Figures:
    """Three streams with a third of the rows each, batch after batch in turn: probe the two
    others, fetch the rows of the keys that both hold, append."""
    third = Workload(work.rows // 3, work.key, work.skew, work.batch_rows)
    side = open_side(directory, 3)
    tally, clock = Tally(work), CpuClock("join")
    streams = [third.numbered_batches(seed) for seed in range(3)]
    arrivals = (item for turn in zip(*streams, strict=True) for item in enumerate(turn))
    for stream, (rows, numbers) in clock.each(arrivals):
        with clock.off():
            keys, distinct = third.key_batch(numbers), third.key_batch(np.unique(numbers))
        for match in side.join((stream + 1) % 3, (stream + 2) % 3, distinct):
            with clock.off():
                tally.add(match, distinct)
        side.append(stream, rows, keys)
    side.settle()
    seconds = clock.seconds()
    side.close()
    return {
        "join_us": seconds * 1e6 / work.rows,
        "join_raw_us": (seconds - side.conversion_seconds) * 1e6 / work.rows,
        "rows_found": tally.rows,
        "digest": tally.digest,
    }


def resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def disk_bytes(directory: str) -> int:
    """Of all files below, each counted once however many names it has."""
    sizes = {}
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.stat(os.path.join(path, name))
            except FileNotFoundError:
                continue  # merged away meanwhile
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
