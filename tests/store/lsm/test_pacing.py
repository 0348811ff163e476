"""Pacing of merges: a part for each append, whatever the rows are like, and all of it in time."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm.jobs import EVERYTHING
from lsmstate.lsm.merge_pacing import CATCH_UP, PATIENCE_SECONDS, Pace
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.version_set import RunSet
from lsmstate.options import MIB, Options
from lsmstate.process.background_worker import SLICE_BYTES
from lsmstate.store import StreamSchema
from support.sampling import each_value

#: Merges are to be done in four memtables, of which 8 MiB are rows; at most 14 runs stand.
OPTIONS = Options(memtable_bytes=12 * MIB, background=True)
ALONE = Options(memtable_bytes=12 * MIB, background=False)


class Merging:
    """One merge, paid for by appends of 1 MiB; every ``run_bytes`` of them a run comes."""

    def __init__(self, pace: Pace, total: int, runs: int, run_bytes: int) -> None:
        self.pace, self.total, self.runs = pace, total, runs
        self.run_bytes, self.done, self.payments = run_bytes, 0, []
        self.arrived = 0
        pace.begin_merge(runs)

    def append(self, size: int = MIB, *, by_worker: int = 0, pays: bool = True) -> None:
        self.done = min(self.total, self.done + by_worker)
        self.pace.count(size)
        payment = self.pace.payment(size, self.runs, self.total, self.done)
        self.payments.append(payment.max_bytes)
        if pays:
            self.done = min(self.total, self.done + payment.max_bytes)
        self.arrived += size
        while self.arrived >= self.run_bytes:
            self.arrived -= self.run_bytes
            self.runs += 1
            self.pace.run_came()

    def run_until(self, runs: int) -> None:
        while self.runs < runs:
            self.append()

    @property
    def largest_share(self) -> float:
        """Of the merge, what the append paid that paid most."""
        return max(self.payments) / self.total


@pytest.mark.parametrize("run_bytes", [2 * MIB, 5 * MIB, 8 * MIB, 11 * MIB])
@pytest.mark.parametrize("runs", [4, 9, 12])
@pytest.mark.parametrize("options", [OPTIONS, ALONE])
def test_a_merge_is_paid_for_evenly_and_in_time(options, run_bytes, runs):
    """Once it is known how much fills a memtable, which may be four times less than is foretold."""
    pace = Pace(options)
    Merging(pace, 400 * MIB, runs, run_bytes).run_until(runs + 6)
    merging = Merging(pace, 400 * MIB, runs, run_bytes)
    end = min(options.most_runs, runs + (4 if options is OPTIONS else 2))
    merging.run_until(end)
    assert merging.done == merging.total
    assert merging.largest_share <= 1.7 / ((end - runs) * run_bytes // MIB)


@pytest.mark.parametrize("total", [1000, SLICE_BYTES // 3, SLICE_BYTES, 9 * SLICE_BYTES // 2])
def test_also_the_last_and_small_ones_are_done_in_time(total):
    merging = Merging(Pace(OPTIONS), total, 4, 8 * MIB)
    merging.run_until(8)
    assert merging.done == total
    assert merging.payments[1] == 0, "not at once"


def test_the_first_memtable_is_as_foretold():
    merging = Merging(Pace(OPTIONS), 320 * MIB, 4, 8 * MIB)
    merging.run_until(6)
    assert 0.45 <= merging.done / merging.total <= 0.6


@pytest.mark.parametrize(("run_bytes", "most"), [(4 * MIB, 0.12), (2 * MIB, 0.4), (MIB, 0.7)])
def test_runs_that_come_sooner_than_foretold_are_made_up_for(run_bytes, most):
    """Rows have got smaller, up to eight times, so that each append fills a memtable."""
    merging = Merging(Pace(OPTIONS), 100 * MIB, 6, run_bytes)
    merging.run_until(11)
    assert merging.done == merging.total
    assert merging.largest_share <= most


def test_memtables_that_take_less_or_more_than_foretold():
    """An eighth less leaves next to nothing to the last run; what takes more is not paid for much
    sooner."""
    merging = Merging(Pace(OPTIONS), 100 * MIB, 13, 7 * MIB)
    while merging.runs < 14:
        merging.append(MIB // 8)
    assert merging.done >= 0.98 * merging.total
    merging = Merging(Pace(OPTIONS), 320 * MIB, 4, 16 * MIB)
    merging.run_until(5)
    assert 0.25 <= merging.done / merging.total <= 0.42


def test_what_the_worker_does_is_not_paid_for():
    merging = Merging(Pace(OPTIONS), 100 * MIB, 9, 8 * MIB)
    for _ in range(9):
        merging.append(by_worker=10 * MIB)
    assert merging.payments == [0] * 9


def test_what_earlier_appends_left_is_paid_in_parts():
    merging = Merging(Pace(OPTIONS), 400 * MIB, 9, 8 * MIB)
    for _ in range(16):
        merging.append(pays=False)
    merging.append()
    assert merging.payments[-1] <= 1.1 * CATCH_UP * 400 * MIB / (4 * 8 - 17)
    merging.run_until(13)
    assert merging.done >= 0.9 * merging.total


@pytest.mark.parametrize("before", [3, 0])
def test_a_small_run_of_a_commit_is_not_the_rule(before):
    """Else what is left would be paid by the few appends until the next one like it."""
    pace = Pace(OPTIONS)
    for _ in range(before):
        pace.count(8 * MIB)
        pace.run_came()
    pace.count(1000)
    pace.run_came()
    merging = Merging(pace, 100 * MIB, 9, 8 * MIB)
    merging.append(1000)
    merging.append()
    assert merging.largest_share <= 1 / (4 * 4 - 2)


def test_a_commit_of_nothing_says_nothing():
    pace, other = Pace(OPTIONS), Pace(OPTIONS)
    for _ in range(20):
        pace.run_came()
    for each in (pace, other):
        each.begin_merge(9)
        each.count(MIB)
    assert pace.payment(MIB, 9, 100 * MIB, 0) == other.payment(MIB, 9, 100 * MIB, 0)


def test_an_append_larger_than_a_memtable_pays_what_is_due():
    merging = Merging(Pace(OPTIONS), 100 * MIB, 9, 8 * MIB)
    merging.append(40 * MIB)
    assert 0 < merging.payments[0] <= 100 * MIB


def test_the_worker_is_waited_for_where_the_next_run_would_be_too_many():
    for runs, is_waited_for in ((13, False), (14, True)):
        pace = Pace(OPTIONS)
        pace.begin_merge(13)
        pace.count(MIB)
        payment = pace.payment(MIB, runs, 100 * MIB, 0)
        assert payment.max_bytes > 0
        assert (payment.patience is None) == is_waited_for


def test_the_later_a_merge_is_the_longer_the_worker_is_waited_for():
    pace = Pace(OPTIONS)
    pace.begin_merge(9)
    patience = []
    for _ in range(24):
        pace.count(MIB)
        patience.append(pace.payment(MIB, 9, 100 * MIB, 0).patience)
    assert patience == sorted(patience)
    assert 0 < patience[0] < 0.1 * PATIENCE_SECONDS
    assert 0.4 * PATIENCE_SECONDS < patience[-1] <= PATIENCE_SECONDS


@pytest.mark.parametrize(("total", "done"), [(100 * MIB, 101 * MIB), (0, 0), (0, MIB)])
def test_a_merge_with_more_than_was_foretold_is_gone_on_with(total, done):
    """Or of deleted ranges, of which nothing is read."""
    for runs in (9, 14):
        pace = Pace(OPTIONS)
        pace.begin_merge(9)
        pace.count(1)
        assert pace.payment(1, runs, total, done).max_bytes == SLICE_BYTES


class Steps:
    """The parts of merges that a store's calls paid for."""

    def __init__(self, monkeypatch) -> None:
        self.taken: list[tuple[object, int, bool]] = []

        def step(runs, max_bytes, merge=None, *, _step=RunSet._step, **options):
            at = merge or runs._merge
            before = at.done_bytes
            _step(runs, max_bytes, merge, **options)
            self.taken.append((at, at.done_bytes - before, max_bytes == EVERYTHING))

        monkeypatch.setattr(RunSet, "_step", step)

    def shares(self, least_bytes: int) -> list[float]:
        """Of merges of so many bytes."""
        return [
            done / merge.total_bytes
            for merge, done, _ in self.taken
            if merge.total_bytes >= least_bytes
        ]


def stream(width: int, key: pa.DataType) -> StreamSchema:
    return StreamSchema("s", pa.schema([("key", key)]), pa.schema([("value", pa.binary(width))]))


def append(store: LsmStore, schema: StreamSchema, chance: np.random.Generator, rows: int) -> None:
    key, value = schema.key.field(0).type, schema.rows.field(0).type

    def column(kind: pa.DataType) -> pa.Array:
        content = pa.py_buffer(chance.bytes(rows * kind.byte_width))
        return pa.Array.from_buffers(kind, rows, [None, content])

    keys = pa.record_batch([column(key)], schema=schema.key)
    store.append("s", pa.record_batch([column(value)], schema=schema.rows), keys)


@each_value(
    widths=[(4, 8), (400, 8), (4, 1000)], fanout=[2, 4], merging=["lazy", "leveled", "tiered"]
)
def test_appends_pay_for_merges_in_parts(tmp_path, monkeypatch, widths, fanout, merging):
    """Also of small rows, of which fewer fill a memtable than is foretold, and of long keys."""
    width, key = widths
    steps = Steps(monkeypatch)
    kind = pa.int64() if key == 8 else pa.binary(key)
    schema = stream(width, kind)
    chance = np.random.default_rng(3)
    options = Options(
        memory_bytes=8 * MIB,
        memtable_bytes=MIB,
        background=False,
        fanout=fanout,
        merging=merging,
        file_bytes=256 << 10,
    )
    runs = []
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        for _ in range(20 * MIB // (50 * (width + key + 60))):
            append(store, schema, chance, 50)
            runs.append(len(store._runs.version.runs))
        store.check()
    assert not any(ends for _, _, ends in steps.taken), "the next run did not wait for a merge"
    assert np.mean(runs) <= options.max_runs
    shares = steps.shares(4 * MIB)
    assert sum(shares) > 0.9, "merges were made"
    assert max(shares) <= 0.25


def test_small_commits_do_not_end_a_large_merge(tmp_path, monkeypatch):
    """Where they bring a run too many, small runs are merged."""
    schema = stream(100, pa.int64())
    chance = np.random.default_rng(5)
    options = Options(memory_bytes=8 * MIB, memtable_bytes=MIB, background=False, sync="never")
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        while store._runs._merge is None or store._runs._merge.total_bytes < 6 * MIB:
            append(store, schema, chance, 100)
        merge = store._runs._merge
        rows = store.stats().counters["rows"]
        steps, most = Steps(monkeypatch), 0
        for _ in range(20):
            append(store, schema, chance, 1)
            store.commit()
            most = max(most, len(store._runs.version.runs))
        assert most == options.most_runs
        assert any(ends and at is not merge for at, _, ends in steps.taken), "there were too many"
        assert max(steps.shares(merge.total_bytes), default=0.0) < 0.3
        assert store.stats().counters["rows"] == rows + 20
        store.check()


def test_a_merge_that_is_less_than_another_is_ended(tmp_path, monkeypatch):
    """Where runs are too many since nobody paid for it."""
    schema = stream(100, pa.int64())
    chance = np.random.default_rng(7)
    options = Options(memory_bytes=8 * MIB, fanout=2, max_runs=4, background=False, sync="never")
    monkeypatch.setattr(RunSet, "pace", lambda runs, appended: runs.begin_merge())
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        steps = Steps(monkeypatch)
        for rows in [100] * 2 + [2000] * 6:
            append(store, schema, chance, rows)
            store.commit()
        (merge, done, ends), *_ = steps.taken
        assert ends
        assert merge.task.start == 0
        assert done == merge.total_bytes < 100_000
        assert len(store._runs.version.runs) <= options.most_runs
        store.check()


def test_ranges_are_deleted_where_no_row_is_left(tmp_path):
    """Then there are runs that hold nothing but deleted ranges, and merges of them."""
    schema = stream(100, pa.int64())
    keys = pa.record_batch([pa.array(range(5000))], schema=schema.key)
    rows = pa.record_batch([pa.array([b"x" * 100] * 5000, pa.binary(100))], schema=schema.rows)
    options = Options(memory_bytes=16 * MIB, sync="never")
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        store.append("s", rows, keys)
        store.compact()
        for number in range(40):
            store.delete_range("s", low=[number * 10], high=[number * 10 + 5])
            store.commit()
        assert store.stats().counters["merges"] > 0
        assert store.probe("s", keys).counts.sum() == 5000 - 40 * 5
        store.check()
    with LsmStore.open(str(tmp_path), [schema], options=options) as store:
        assert store.probe("s", keys).counts.sum() == 5000 - 40 * 5
