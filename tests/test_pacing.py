"""Pacing of merges: a part for each append, whatever the rows are like, and all of it in time."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.background import SLICE_BYTES
from lsmstate.lsm_store import LsmStore
from lsmstate.options import Options
from lsmstate.pacing import CATCH_UP, Pace
from lsmstate.run_set import RunSet
from lsmstate.store import StreamSchema

MIB = 1 << 20
MOST_RUNS = 14
MEMTABLE = 12 * MIB


class Merging:
    """One merge, paid for by appends of 1 MiB; every ``run_bytes`` of them a run comes."""

    def __init__(self, pace: Pace, total: int, runs: int, run_bytes: int) -> None:
        self.pace, self.total, self.runs = pace, total, runs
        self.run_bytes, self.done, self.payments = run_bytes, 0, []
        self.arrived = 0
        pace.begin_merge()

    def append(self, size: int = MIB, *, by_worker: int = 0, pays: bool = True) -> None:
        self.done = min(self.total, self.done + by_worker)
        self.pace.count(size)
        payment = self.pace.payment(size, MEMTABLE, self.runs, self.total, self.done)
        self.payments.append(payment.max_bytes)
        if pays:
            self.done = min(self.total, self.done + payment.max_bytes)
        self.arrived += size
        while self.arrived >= self.run_bytes:
            self.arrived -= self.run_bytes
            self.runs += 1
            self.pace.run_came()

    def run_to_the_limit(self) -> None:
        while self.runs < MOST_RUNS:
            self.append()


@pytest.mark.parametrize("run_bytes", [2 * MIB, 5 * MIB, 8 * MIB, 11 * MIB])
@pytest.mark.parametrize("runs", [4, 9, 12])
def test_a_merge_is_paid_for_evenly_and_in_time(run_bytes, runs):
    """Once it is known how much fills a memtable, which may be four times less than is foretold."""
    pace = Pace(MOST_RUNS, haste=1)
    Merging(pace, 400 * MIB, runs, run_bytes).run_to_the_limit()
    merging = Merging(pace, 400 * MIB, runs, run_bytes)
    merging.run_to_the_limit()
    assert merging.done >= 0.98 * merging.total
    assert max(merging.payments) <= 2 * merging.total / len(merging.payments) + SLICE_BYTES


def test_runs_that_come_sooner_than_foretold_are_made_up_for():
    pace = Pace(MOST_RUNS, haste=1)
    merging = Merging(pace, 100 * MIB, 6, MIB)
    merging.run_to_the_limit()
    merging.append()
    assert merging.done >= 95 * MIB


def test_what_the_worker_does_is_not_paid_for():
    merging = Merging(Pace(MOST_RUNS, haste=1), 100 * MIB, 9, 8 * MIB)
    for _ in range(9):
        merging.append(by_worker=10 * MIB)
    assert merging.payments == [0] * 9


def test_what_earlier_appends_left_is_paid_in_parts():
    merging = Merging(Pace(MOST_RUNS, haste=1), 400 * MIB, 9, 8 * MIB)
    for _ in range(20):
        merging.append(pays=False)
    merging.append()
    assert merging.payments[-1] <= CATCH_UP * 400 * MIB / (5 * 8 - 21)
    merging.run_to_the_limit()
    assert merging.done >= 0.9 * merging.total


def test_alone_a_merge_is_done_in_half_the_time():
    merging = Merging(Pace(MOST_RUNS, haste=2), 100 * MIB, 4, 8 * MIB)
    for _ in range(5 * 8):
        merging.append()
    assert merging.done >= 70 * MIB


def test_a_small_run_of_a_commit_is_not_the_rule():
    """Else what is left would be paid by the few appends until the next one like it."""
    pace = Pace(MOST_RUNS, haste=1)
    for _ in range(3):
        pace.count(8 * MIB)
        pace.run_came()
    pace.count(1000)
    pace.run_came()
    merging = Merging(pace, 100 * MIB, 9, 8 * MIB)
    merging.append()
    assert merging.payments[0] <= 100 * MIB / (5 * 4) + SLICE_BYTES


def test_the_worker_is_waited_for_where_the_next_run_would_be_too_many():
    for runs, is_waited_for in ((MOST_RUNS - 1, False), (MOST_RUNS, True)):
        pace = Pace(MOST_RUNS, haste=1)
        pace.count(MIB)
        payment = pace.payment(MIB, MEMTABLE, runs, 100 * MIB, 0)
        assert payment.max_bytes > 0
        assert (payment.patience is None) == is_waited_for


def test_a_merge_with_more_than_was_foretold_is_gone_on_with():
    pace = Pace(MOST_RUNS, haste=1)
    pace.count(MIB)
    assert pace.payment(MIB, MEMTABLE, 9, 100 * MIB, 101 * MIB).max_bytes == SLICE_BYTES


@pytest.mark.parametrize("width", [4, 400])
def test_no_append_pays_for_much_of_a_merge(tmp_path, monkeypatch, width):
    """Small rows take more of a memtable than their bytes, so runs come sooner than foretold."""
    parts = []

    def step(runs, *arguments, _step=RunSet._step, **options):
        merge = runs._merge
        before = merge.done_bytes
        _step(runs, *arguments, **options)
        parts.append((merge.done_bytes - before, merge.total_bytes))

    monkeypatch.setattr(RunSet, "_step", step)
    schema = StreamSchema(
        "s", pa.schema([("key", pa.int64())]), pa.schema([("value", pa.binary(width))])
    )
    chance = np.random.default_rng(3)
    options = Options(memory_bytes=8 * MIB, background=False)
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        for _ in range(60 * MIB // (100 * (width + 60))):
            keys = pa.record_batch([pa.array(chance.integers(0, 1 << 40, 100))], names=["key"])
            values = chance.bytes(100 * width)
            column = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(width), 100, [None, pa.py_buffer(values)]
            )
            store.append("s", pa.record_batch([column], schema=schema.rows), keys)
    shares = [part / total for part, total in parts if total > 4 * MIB]
    assert sum(shares) > 2, "merges were made"
    assert max(shares) < 0.2
