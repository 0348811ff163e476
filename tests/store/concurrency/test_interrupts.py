"""Calls in the middle of which a signal's handler raises, as it does on Ctrl-C."""

import gc
import random
import signal
import sys
import time
from collections import Counter

import pyarrow as pa
import pytest

from lsmstate.errors import StoreClosedError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import Mutation, StreamSchema
from support.sampling import each_value, some_or_every

STREAM = StreamSchema(
    "s", pa.schema([("k", pa.int64())]), pa.schema([("batch", pa.int64()), ("text", pa.binary())])
)
CAP = 6 * MIB
#: What nothing but a store that is open, and its reads, may hold.
HELD_BY_A_STORE = ("memtable", "merge", "probe", "frames")
#: Of it, what goes with the store or the write, though the exception that interrupted it is kept.
GIVEN_BACK_AT_ONCE = ("memtable", "frames")


class Alarm:
    """Raises KeyboardInterrupt once in a call, after a part of what such a call takes.

    With ``keeps`` the exception, and with it the frames of the call, is kept as a shell keeps it;
    it goes in the middle of a later call, or when that one is interrupted, too."""

    def __init__(self, chance):
        self.interrupts = 0
        self.keeps = False
        self.kept = None
        self._chance = chance
        self._is_armed = False
        self._usual = {}

    def ring(self, *_):
        if not self._is_armed:
            return
        self._is_armed = False
        if self.kept is not None and self._chance.random() < 0.5:
            self.kept = None
            return
        self.interrupts += 1
        raise KeyboardInterrupt

    def interrupts_call(self, function, *arguments):
        """Whether it did."""
        kind = getattr(function, "__name__", "")
        usual = self._usual.get(kind, 0.001)
        begun = time.perf_counter()
        try:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, 1.2 * usual))
            function(*arguments)
        except KeyboardInterrupt as interrupt:
            assert not self._is_armed
            if self.keeps:
                self.kept = interrupt
            self._usual[kind] = usual * 1.02  # or one that takes longer would never end
            return True
        finally:
            self._is_armed = False
        self._usual[kind] = usual + (time.perf_counter() - begun - usual) / 8
        return False


@pytest.fixture
def alarm(monkeypatch):
    found = Alarm(random.Random(7))
    report = sys.unraisablehook

    def report_others(unraisable):
        # In a destructor, or a callback of the collector, an interrupt is lost: pytest would keep
        # it, and with it the frames of the write.
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", report_others)
    before = signal.signal(signal.SIGALRM, found.ring)
    yield found
    signal.signal(signal.SIGALRM, before)


def held_bytes(names=HELD_BY_A_STORE):
    usage = process_memory().budget.usage()
    return {name: usage[name] for name in names}


def batch(chance, number, rows, size):
    keys = [chance.randrange(500) for _ in range(rows)]
    texts = [chance.randbytes(size) for _ in range(rows)]
    return (
        pa.RecordBatch.from_arrays(
            [pa.array([number] * rows), pa.array(texts, pa.binary())], schema=STREAM.rows
        ),
        pa.RecordBatch.from_arrays([pa.array(keys)], schema=STREAM.key),
    )


def rows_by_batch(store):
    found = Counter()
    for piece in store.iterate("s", max_bytes=MIB):
        found.update(piece.rows.column(0).to_pylist())
    return found


@each_value(background=[False, True], is_large=[False, True], keeps=[False, True])
@some_or_every
def test_interrupted_writes_are_whole_or_not_there_and_nothing_stays_charged(
    tmp_path, alarm, background, is_large, keeps, every
):
    alarm.keeps = keeps
    chance = random.Random(1)
    gc.collect()
    before, before_at_once = held_bytes(), held_bytes(GIVEN_BACK_AT_ONCE)
    options = Options(memory_bytes=CAP, sync="never", background=background)
    rows, size = (1, 700 * KIB) if is_large else (400, 100)
    acknowledged = Counter()
    reasons = []
    number = 0
    wanted = 2000 if every else 40
    directory = str(tmp_path)
    while alarm.interrupts < wanted:
        with LsmStore.open(directory, [STREAM], options=options) as store:
            while alarm.interrupts < wanted:
                number += 1
                written, keys = batch(chance, number, rows, size)
                if number % 2:
                    is_cut = alarm.interrupts_call(store.append, "s", written, keys)
                else:
                    mutation = Mutation("append", "s", keys, written)
                    is_cut = alarm.interrupts_call(store.write, [mutation])
                if not is_cut:
                    acknowledged[number] = rows
                    continue
                try:
                    store.append("s", written.slice(0, 0), keys.slice(0, 0))
                    found = rows_by_batch(store)
                except StoreClosedError as error:
                    reasons.append(str(error))
                    break
                if number in found:
                    acknowledged[number] = rows
                assert found == acknowledged
        assert held_bytes(GIVEN_BACK_AT_ONCE) == before_at_once, alarm.interrupts
        with LsmStore.open(directory, [STREAM], options=options) as store:
            found = rows_by_batch(store)
            if number in found:  # it may have been logged
                acknowledged[number] = rows
            assert found == acknowledged
        assert all("half-way (KeyboardInterrupt)" in reason for reason in reasons)
        if len(acknowledged) * rows * size > 40 * MIB:
            directory = str(tmp_path / str(number))
            acknowledged.clear()
    alarm.kept = None
    gc.collect()
    assert held_bytes() == before
    assert len(reasons) > (5 if every else 1)


class Calls:
    """A store, and a model of what is in it: each row is a batch's number, under one key."""

    def __init__(self, directory, options, chance):
        self.directory = directory
        self.options = options
        self.rows = Counter()
        self._chance = chance
        self._number = 0
        self.store = None
        self.open()

    def open(self):
        if self.store is None:  # or all of a call was made, and then interrupted
            self.store = LsmStore.open(self.directory, [STREAM], options=self.options)

    def close(self):
        self.store.close()

    def found(self):
        found = Counter()
        for piece in self.store.iterate("s", max_bytes=MIB):
            keys = piece.keys.column(0).to_pylist()
            found.update(zip(keys, piece.rows.column(0).to_pylist(), strict=True))
        return found

    def chosen(self):
        """A call, and what the store may hold after it: the least and the most."""
        chosen = self._chance.choices(
            [
                self._append,
                self._append_parts,
                self._delete,
                self._delete_parts,
                self._read,
                *map(self._unchanging, ["flush", "compact", "commit", "snapshot", "close"]),
            ],
            [8, 3, 4, 2, 3, 2, 2, 2, 2, 1],
        )[0]
        return chosen()

    def _unchanging(self, name):
        return lambda: (getattr(self, name), self.rows, self.rows)

    def _written(self, rows, size):
        self._number += 1
        written, keys = batch(self._chance, self._number, rows, size)
        after = self.rows + Counter((key, self._number) for key in keys.column(0).to_pylist())
        return written, keys, after

    def _append(self):
        written, keys, after = self._written(200, 100)

        def append():
            self.store.append("s", written, keys)

        return append, self.rows, after

    def _append_parts(self):
        written, keys, after = self._written(30, 30 * KIB)

        def append_parts():
            self.store.append("s", written, keys)

        return append_parts, self.rows, after

    def _delete(self):
        first = self._chance.randrange(500)
        return self._deleting("delete", range(first, first + 100))

    def _delete_parts(self):
        return self._deleting("delete_parts", [*range(400), *range(1000, 40_000)])

    def _deleting(self, name, keys):
        gone = set(keys)
        after = Counter({row: count for row, count in self.rows.items() if row[0] not in gone})
        keys = pa.RecordBatch.from_arrays([pa.array(list(keys))], schema=STREAM.key)

        def delete():
            self.store.delete("s", keys)

        delete.__name__ = name
        return delete, after, self.rows

    def _read(self):
        return self.found, self.rows, self.rows

    def flush(self):
        self.store.flush()

    def compact(self):
        self.store.compact()

    def commit(self):
        self.store.commit()

    def snapshot(self):
        with self.store.snapshot() as snapshot:
            assert sum(len(piece.rows) for piece in snapshot.iterate("s")) >= 0


@each_value(background=[False, True], keeps=[False, True])
@some_or_every
@pytest.mark.filterwarnings("ignore:the snapshot:ResourceWarning")
def test_interrupted_calls_of_every_kind_leave_a_store_that_works_or_can_be_closed(
    tmp_path, alarm, background, keeps, every
):
    alarm.keeps = keeps
    chance = random.Random(3)
    gc.collect()
    before, before_at_once = held_bytes(), held_bytes(GIVEN_BACK_AT_ONCE)
    options = Options(memory_bytes=CAP, sync="never", background=background)
    wanted, most_rows = (2000, 20_000) if every else (60, 5_000)
    calls = Calls(str(tmp_path), options, chance)
    kinds = Counter()
    reasons = []
    while alarm.interrupts < wanted:
        call, least, most = calls.chosen()
        if alarm.interrupts_call(call):
            kinds[call.__name__] += 1
        else:
            most = least = most if call.__name__.startswith("append") else least
        try:
            found = calls.found()
        except StoreClosedError as error:
            reasons.append(str(error))
            while alarm.interrupts_call(calls.close):
                kinds["close"] += 1
            gc.collect()  # an opened store that nobody was given
            assert held_bytes(GIVEN_BACK_AT_ONCE) == before_at_once, kinds
            calls.store = None
            if alarm.interrupts_call(calls.open):
                kinds["open"] += 1
                calls.open()
            found = calls.found()
        assert least <= found <= most, call.__name__
        calls.rows = found
        if sum(found.values()) > most_rows:
            calls.close()
            calls.directory = str(tmp_path / str(alarm.interrupts))
            calls.store = None
            calls.open()
            calls.rows = Counter()
    calls.close()
    alarm.kept = None
    gc.collect()
    assert held_bytes() == before
    assert len(kinds) >= 9  # of 11
    assert all("half-way (KeyboardInterrupt)" in each or "is closed" in each for each in reasons)
