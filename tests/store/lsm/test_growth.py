"""A micro-batch costs what it brings, however much came before: counted, not timed.

``bench/spark/growth.py`` has the times.
"""

import os
from pathlib import Path

import pyarrow as pa

from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.store import StreamSchema
from support.child_process import in_child
from support.faults import Faults, faults

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("text", pa.string())])
STREAMS = [StreamSchema(name, KEY, ROWS) for name in "ab"]
BATCHES = 200
PER_BATCH = 50
OPTIONS = Options(memory_bytes=8 * MIB, retained_batches=8)


def attempt(directory: Path, pointer: str | None, batch: int) -> LsmStore:
    return LsmStore.open_attempt(
        str(directory), STREAMS, pointer=pointer, batch_id=batch, attempt_id="a", options=OPTIONS
    )


def micro_batch(directory: Path, pointer: str | None, batch: int) -> tuple[str, int]:
    """The pointer, and the number of sorted runs."""
    keys = [batch * PER_BATCH + (i * 37) % PER_BATCH for i in range(PER_BATCH)]
    texts = [f"{key:060d}" for key in keys]
    rows = pa.record_batch([pa.array(keys), pa.array(texts)], schema=ROWS)
    with attempt(directory, pointer, batch) as store:
        for name in "ab":
            store.append(name, rows, rows.select(["k"]))
        return store.commit(), store.stats().counters["runs"]


def operations(work) -> list[str]:
    """The file operations of some work."""
    kinds = ("create", "append", "open", "read", "sync", "remove")
    with faults(Faults(operations=kinds)) as hook:
        work()
    return [operation for operation, _ in hook.seen]


def test_200_small_batches_write_open_and_leave_no_more_than_the_first(tmp_path):
    pointer, seen, runs = None, [], []
    for batch in range(BATCHES):

        def work(batch=batch):
            nonlocal pointer
            pointer, count = micro_batch(tmp_path, pointer, batch)
            runs.append(count)

        seen.append(len([kind for kind in operations(work) if kind in ("create", "append")]))
        if batch in (20, BATCHES - 1):
            in_child(lambda: opens_cheaply(tmp_path, pointer))
    assert sum(seen[-50:]) <= 1.5 * sum(seen[10:60])
    assert max(runs) <= 2 * OPTIONS.max_runs + 1
    assert len(os.listdir(tmp_path)) < 80


def opens_cheaply(directory: Path, pointer: str) -> None:
    """In a process that has never seen the store: what a bucket that changes workers pays."""
    found: list[int] = []

    def work() -> None:
        with attempt(directory, pointer, BATCHES) as store:
            key = pa.record_batch([pa.array([7], pa.int64())], schema=KEY)
            found.append(store.probe("a", key).counts[0])

    seen = operations(work)
    assert found == [1]
    assert len(seen) <= 60, f"{len(seen)} file operations"
