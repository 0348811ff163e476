"""Writes in the middle of which a signal's handler raises, as it does on Ctrl-C."""

import gc
import random
import signal
import sys
import time
from collections import Counter

import pyarrow as pa
import pytest
from sampling import some_or_every

from lsmstate.errors import StoreClosedError
from lsmstate.lsm_store import LsmStore
from lsmstate.memory_budget import process_memory
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import Mutation, StreamSchema

STREAM = StreamSchema(
    "s", pa.schema([("k", pa.int64())]), pa.schema([("batch", pa.int64()), ("text", pa.binary())])
)
CAP = 6 * MIB
#: What nothing but a store that is open, and its reads, may hold.
HELD_BY_A_STORE = ("memtable", "merge", "probe", "frames")


class Alarm:
    """Raises KeyboardInterrupt once in a call, after a part of what such a call takes."""

    def __init__(self, chance):
        self.interrupts = 0
        self._chance = chance
        self._is_armed = False
        self._usual = 0.001

    def ring(self, *_):
        if self._is_armed:
            self._is_armed = False
            self.interrupts += 1
            raise KeyboardInterrupt

    def interrupts_call(self, function, *arguments):
        """Whether it did."""
        begun = time.perf_counter()
        try:
            self._is_armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-6, 1.2 * self._usual))
            function(*arguments)
            self._is_armed = False
        except KeyboardInterrupt:
            assert not self._is_armed
            return True
        self._usual += (time.perf_counter() - begun - self._usual) / 8
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


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("background", [False, True])
@some_or_every
def test_interrupted_writes_are_whole_or_not_there_and_nothing_stays_charged(
    tmp_path, alarm, background, is_large, every
):
    chance = random.Random(1)
    usage = process_memory().budget.usage
    before = {name: usage()[name] for name in HELD_BY_A_STORE}
    options = Options(memory_bytes=CAP, sync="never", background=background)
    rows, size = (1, 700 * KIB) if is_large else (400, 100)
    acknowledged = Counter()
    number = failures = 0
    wanted = 2000 if every else 100
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
                except StoreClosedError:
                    failures += 1
                    break
                if number in found:
                    acknowledged[number] = rows
                assert found == acknowledged
        gc.collect()
        held = {name: usage()[name] for name in HELD_BY_A_STORE}
        assert held == before, alarm.interrupts
        with LsmStore.open(directory, [STREAM], options=options) as store:
            found = rows_by_batch(store)
            if number in found:  # it may have been logged
                acknowledged[number] = rows
            assert found == acknowledged
        if len(acknowledged) * rows * size > 40 * MIB:
            directory = str(tmp_path / str(number))
            acknowledged.clear()
    assert failures > 5
