"""Our store beside rocksdict at 200,000 rows, by pytest-benchmark: a look that takes a minute.

Run: ``make bench ARGS="-k store"``. Seconds are of CPU, of all threads of the process. The table to
go by is that of ``compare_stores.py``: larger states, a fresh process for each run, more measures.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.common.measures import Tally
from bench.common.one_run import opener, parser
from bench.common.workloads import Workload
from bench.store.commits import NEXT_BATCH, Batch, Bucket, further_batches, open_database
from bench.store.engines import RocksSetup
from bench.store.sides import Match, OurSide, Side
from lsmstate.options import MIB, Options

WORK = Workload(200_000)
SIDES = ("ours", "rocksdict")
ROUNDS = 5
#: Little enough for the state not to lie in a memtable.
MEMORY_BYTES = 16 * MIB
#: Batches of 10,000 keys to look for.
PROBES = 10
COMMITS = 10

#: What each measure found, on the side that came first: the others must agree.
_found: dict[str, object] = {}

Opened = Callable[[int], Side]
CommitAll = Callable[[Iterable[Batch]], None]
Probe = Callable[[pa.RecordBatch], Iterable[Match]]


def agree(measure: str, result: object) -> None:
    assert _found.setdefault(measure, result) == result


def tallied(matches: list[tuple[Match, pa.RecordBatch]], work: Workload) -> tuple[int, int]:
    """Rows found, and their digest."""
    tally = Tally(work)
    for match, keys in matches:
        tally.add(match, keys)
    return tally.rows, tally.digest


def on_every_side(measure: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Of a test: its figures stand in one table, with ``side`` in turn."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        grouped = pytest.mark.benchmark(group=measure, timer=time.process_time)(test)
        return pytest.mark.parametrize("side", SIDES)(grouped)

    return mark


@pytest.fixture
def open_side(side: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """Opens a new store with so many streams, and closes the one opened before."""
    opened: list[Side] = []

    def open_new(streams: int) -> Side:
        while opened:
            opened.pop().close()
        directory = str(tmp_path_factory.mktemp(side) / "store")
        given = parser().parse_args(
            ["store", side, "--directory", directory, "--memory", str(MEMORY_BYTES)]
        )
        opened.append(opener(given, WORK)(directory, streams))
        return opened[-1]

    yield open_new
    while opened:
        opened.pop().close()


@on_every_side("append, flush and all merging")
def test_store_append(benchmark: Any, open_side: Opened) -> None:
    batches = list(WORK.batches())

    def append(side: Side) -> None:
        for rows, keys in batches:
            side.append(0, rows, keys)
        side.settle()

    benchmark.pedantic(append, setup=lambda: ((open_side(1),), {}), rounds=ROUNDS, warmup_rounds=1)


@on_every_side("probe, hits")
def test_store_hits(benchmark: Any, open_side: Opened) -> None:
    probe_filled(benchmark, open_side, "hits", WORK.hits(PROBES))


@on_every_side("probe, misses")
def test_store_misses(benchmark: Any, open_side: Opened) -> None:
    probe_filled(benchmark, open_side, "misses", WORK.misses(PROBES))


def probe_filled(
    benchmark: Any, open_side: Opened, measure: str, asked: list[pa.RecordBatch]
) -> None:
    side = open_side(1)
    for rows, keys in WORK.batches():
        side.append(0, rows, keys)
    side.settle()

    def probe() -> list[tuple[Match, pa.RecordBatch]]:
        return [(match, keys) for keys in asked for match in side.probe(0, keys)]

    found = tallied(benchmark.pedantic(probe, rounds=ROUNDS, warmup_rounds=1), WORK)
    assert (found[0] > 0) == (measure == "hits")
    agree(measure, found)


@on_every_side("join loop of three streams")
def test_store_join_loop(benchmark: Any, open_side: Opened) -> None:
    third = Workload(WORK.rows // 3, batch_rows=WORK.batch_rows // 3)
    streams = [third.numbered_batches(seed) for seed in range(3)]
    arrivals = [
        (stream, rows, third.key_batch(numbers), third.key_batch(np.unique(numbers)))
        for turn in zip(*streams, strict=True)
        for stream, (rows, numbers) in enumerate(turn)
    ]

    def join(side: Side) -> list[tuple[Match, pa.RecordBatch]]:
        found = []
        for stream, rows, keys, distinct in arrivals:
            matches = side.join((stream + 1) % 3, (stream + 2) % 3, distinct)
            found += [(match, distinct) for match in matches]
            side.append(stream, rows, keys)
        side.settle()
        return found

    found = benchmark.pedantic(
        join, setup=lambda: ((open_side(3),), {}), rounds=ROUNDS, warmup_rounds=1
    )
    agree("join", tallied(found, third))


@on_every_side(f"{COMMITS} durable commits of 10,000 rows, and the merges they make due")
def test_store_commits(benchmark: Any, side: str, tmp_path: Path) -> None:
    """Onto one state, which grows from round to round."""
    batches = list(islice(further_batches(WORK), COMMITS))
    keys = WORK.hits(1)[0]
    with (our_state if side == "ours" else their_state)(str(tmp_path)) as (commit_all, probe):
        commit_all(WORK.batches())
        benchmark.pedantic(commit_all, args=(batches,), rounds=ROUNDS, warmup_rounds=1)
        agree("commits", tallied([(match, keys) for match in probe(keys)], WORK))


@contextmanager
def our_state(directory: str) -> Iterator[tuple[CommitAll, Probe]]:
    """Each commit is an attempt's of its own; so is what is probed."""
    options = Options(memory_bytes=MEMORY_BYTES, sync="commit")
    bucket = Bucket(directory, WORK, options)

    def commit_all(batches: Iterable[Batch]) -> None:
        for batch in batches:
            bucket.commit([batch])
        bucket.commit([], merge_due=True)

    def probe(keys: pa.RecordBatch) -> Iterator[Match]:
        newest = OurSide.attempt(directory, WORK, options, bucket.pointer, NEXT_BATCH)
        with closing(newest) as side:
            yield from side.probe(0, keys)

    yield commit_all, probe


@contextmanager
def their_state(directory: str) -> Iterator[tuple[CommitAll, Probe]]:
    """Each commit is a checkpoint of one database."""
    path = os.path.join(directory, "database")
    with open_database(path, WORK, MEMORY_BYTES, RocksSetup()) as database:

        def commit_all(batches: Iterable[Batch]) -> None:
            for batch in batches:
                database.append([batch])
                database.checkpoint()
            database.side.settle()

        yield commit_all, lambda keys: database.side.probe(0, keys)
