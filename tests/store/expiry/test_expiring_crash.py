"""Streams with expiry through a power cut at any file operation: rows move between slots, slots are
deleted and the watermark is written meanwhile, and none of it is seen half done."""

import itertools
import random

import pyarrow as pa
import pytest

from lsmstate import opening as backends
from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.expiry_rules import Expiry
from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import StreamSchema
from support.power_cut import Disk

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("at", pa.int64())])
LIFE = 40
KEYS = 20
OPTIONS = Options(
    memory_bytes=6 * MIB, memtable_bytes=256 * KIB, file_bytes=64 * KIB, fanout=2, sync="always"
)


def script(seed, length=14):
    """Steps: (what, rows or value)."""
    chance = random.Random(seed)
    steps, watermark, number = [], 0, 0
    for _ in range(length):
        kind = chance.choice(["append", "append", "append", "put", "delete", "advance", "advance"])
        if kind in ("append", "put"):
            count = chance.choice([1, 5, 60])
            base = watermark + chance.choice([-30, 0, 20, 100, 400])
            rows = []
            for _ in range(count):
                at = chance.choice([None, *range(base, base + 30)])
                rows.append((chance.randrange(KEYS), number, at))
                number += 1
            steps.append((kind, rows))
        elif kind == "delete":
            steps.append((kind, chance.randrange(KEYS)))
        else:
            watermark += chance.choice([1, 10, 15, 60, 300])
            steps.append((kind, watermark))
        if chance.random() < 0.25:
            steps.append(("commit", None))
    return steps


def do(store, step):
    kind, value = step
    if kind == "advance":
        store.advance("timed", value)
    elif kind == "delete":
        store.delete_range("timed", low=(value,), high=(value + 6,))
    elif kind == "commit":
        store.commit()
    else:
        rows = pa.RecordBatch.from_pylist([{"id": i, "at": at} for _, i, at in value], schema=ROWS)
        keys = pa.RecordBatch.from_pylist([{"k": k} for k, _, _ in value], schema=KEY)
        getattr(store, kind)("timed", rows, keys)


def after(state, step):
    """The model: (rows, watermark) after a step."""
    rows, watermark = state
    kind, value = step
    if kind == "advance":
        watermark = value
    elif kind == "delete":
        rows = [row for row in rows if not value <= row[0] < value + 6]
    elif kind in ("append", "put"):
        replaced = {row[0] for row in value} if kind == "put" else set()
        rows = [row for row in rows if row[0] not in replaced] + value
    alive = [row for row in rows if row[2] is None or row[2] + LIFE > watermark]
    return alive, watermark


def opened(directory):
    stream = StreamSchema("timed", KEY, ROWS, expiry=Expiry("at", LIFE))
    store = backends.open_store(str(directory), [stream], options=OPTIONS)
    try:
        store.advance("timed", 0)
    except OSError:
        store.close()
        raise
    return store


def read(store):
    found = []
    for keys, rows in store.iterate("timed", max_bytes=1 << 16):
        found += zip(keys.column(0).to_pylist(), rows.column("id").to_pylist(), strict=True)
    return sorted(found)


def expected(state):
    return sorted((key, number) for key, number, _ in state[0])


def operations(tmp_path, steps):
    """How many file operations there are to be cut at."""
    disk = Disk(tmp_path / "whole")
    set_fault_hook(disk)
    try:
        store = opened(tmp_path / "whole")
        for step in steps:
            do(store, step)
        store.close()
    finally:
        set_fault_hook(None)
    return disk.seen


def check_cut(tmp_path, steps, cut):
    directory, target = tmp_path / f"{cut}", tmp_path / f"{cut}-after"
    disk = Disk(directory, cut_at=cut)
    states = [([], 0)]
    for step in steps:
        states.append(after(states[-1], step))
    done, store = 0, None
    set_fault_hook(disk)
    try:
        try:
            store = opened(directory)
            for step in steps:
                do(store, step)
                done += 1
        except OSError:
            pass
        # Before the hook goes: the background worker would go on deleting.
        disk.after_the_cut(target, random.Random(cut))
    finally:
        set_fault_hook(None)
        if store is not None:
            store.close()
    with opened(target) as store:
        found = read(store)
        possible = states[done : done + 2]
        assert found in [expected(state) for state in possible], (cut, done)
        done += found != expected(possible[0])
        for step in steps[done:]:
            do(store, step)
        assert read(store) == expected(states[-1]), (cut, done)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_power_cut_shows_no_half_expiry(memory_path, seed):
    steps = script(seed)
    count = operations(memory_path, steps)
    for cut in range(5, count, max(1, count // 12)):
        check_cut(memory_path, steps, cut)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 12))
def test_power_cuts_at_every_operation(memory_path, seed):
    steps = script(seed, 24)
    for cut in range(operations(memory_path, steps)):
        check_cut(memory_path, steps, cut)


@pytest.mark.parametrize("is_made", [False, True], ids=["before", "after"])
def test_what_an_interrupted_write_did_is_looked_up(tmp_path, monkeypatch, is_made):
    """Ctrl-C just before, or just after, the store below wrote: every third time."""
    write, calls = LsmStore.write, itertools.count()

    def interrupted_write(store, mutations):
        is_due = mutations and next(calls) % 3 == 2
        if is_due and not is_made:
            raise KeyboardInterrupt
        written = write(store, mutations)
        if is_due:
            raise KeyboardInterrupt
        return written

    state, interrupts = ([], 0), 0
    with opened(tmp_path) as store:
        monkeypatch.setattr(LsmStore, "write", interrupted_write)
        for kind, value in itertools.chain(*map(script, range(4))):
            step = (kind, value + state[1] if kind == "advance" else value)
            following = after(state, step)
            is_done = False
            while not is_done:
                try:
                    do(store, step)
                    is_done = True
                except KeyboardInterrupt:
                    interrupts += 1
                    found = read_through(store)
                    assert found in (expected(state), expected(following))
                    is_done = kind != "advance" and found == expected(following)
            state = following
            assert read_through(store) == expected(state)
    assert interrupts > 10


def read_through(store):
    """As read, which goes on with a move, and may be interrupted for it."""
    while True:
        try:
            return read(store)
        except KeyboardInterrupt:
            continue
