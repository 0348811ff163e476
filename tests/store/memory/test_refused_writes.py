"""A write that finds no memory is refused before it is logged, or not at all."""

import random
from collections import Counter
from contextlib import suppress
from threading import Thread

import pyarrow as pa

from lsmstate.errors import MemoryLimitError
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.write_path import WritePath
from lsmstate.options import KIB, MIB, Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.store import StreamSchema
from support.sampling import each_value

STREAM = StreamSchema("s", pa.schema([("k", pa.int64())]), pa.schema([("t", pa.binary())]))
CAP = 6 * MIB


def opened(directory, **options):
    return LsmStore.open(
        str(directory), [STREAM], options=Options(memory_bytes=CAP, sync="never", **options)
    )


def batch(*rows):
    keys, texts = zip(*rows, strict=True)
    return (
        pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], schema=STREAM.rows),
        pa.RecordBatch.from_arrays([pa.array(keys)], schema=STREAM.key),
    )


def content(store):
    """How often each row is there, by key, length and first bytes."""
    return Counter(
        (key, len(text), text[:8])
        for piece in store.iterate("s", max_bytes=1)
        for key, text in zip(
            piece.keys.column(0).to_pylist(), piece.rows.column(0).to_pylist(), strict=True
        )
    )


@each_value(sizes=[(1, 0), (1, 1), (3, 1), (1, 2), (3, 8)], background=[False, True])
def test_a_refused_append_changes_nothing_and_the_store_goes_on(tmp_path, sizes, background):
    rows, readers = sizes
    refused = 0
    for seed in range(3):
        chance = random.Random(seed)
        directory = tmp_path / str(seed)
        acknowledged = Counter()
        kept = []
        with opened(directory, background=background) as store:
            for _ in range(30):
                size = chance.choice([100_000, 700_000, 1_400_000])
                new = [(chance.randrange(20), chance.randbytes(size)) for _ in range(rows)]
                try:
                    store.append("s", *batch(*new))
                    acknowledged.update((key, size, text[:8]) for key, text in new)
                except MemoryLimitError:
                    refused += 1
                if readers and chance.random() < 0.4:
                    kept = [*kept, store.iterate("s")][-readers:]
                    with suppress(MemoryLimitError):
                        next(kept[-1], None)
            kept.clear()
            assert content(store) == acknowledged, seed
            store.append("s", *batch((1, b"one more")))
            acknowledged[1, 8, b"one more"] += 1
        with opened(directory, background=background) as store:
            assert content(store) == acknowledged, seed
    assert refused or readers < 8


def test_what_others_take_after_a_write_was_logged_does_not_fail_it(tmp_path, monkeypatch):
    """Merges and probes of other threads charge what they need meanwhile."""
    budget = process_memory().budget
    taken = 0
    with opened(tmp_path, background=False) as store:
        store.append("s", *batch((1, b"before" * 100_000)))
        log = store._owner.log

        def log_and_take(writes):
            nonlocal taken
            log(writes)
            taken = budget.limit - budget.total_bytes + 100 * KIB
            budget.hold("probe", taken)

        monkeypatch.setattr(store._owner, "log", log_and_take)
        try:
            new = [(key, bytes([key]) * 300_000) for key in range(2, 6)]
            assert store.append("s", *batch(*new[:1])) == 1
        finally:
            budget.hold("probe", -taken)
        monkeypatch.undo()
        assert store.append("s", *batch(*new[1:])) == 3
        assert sum(content(store).values()) == 5
        usage = budget.usage()
        assert (usage["frames"], usage["probe"]) == (0, 0)
    assert budget.usage()["memtable"] == 0
    with opened(tmp_path, background=False) as store:
        assert sum(content(store).values()) == 5


def test_a_log_is_replayed_where_others_leave_no_memory(tmp_path):
    store = opened(tmp_path, background=False)
    new = [(key, bytes([key]) * 400_000) for key in range(3)]
    for row in new:
        store.append("s", *batch(row))
    store._owner.release()  # as a process that ends without closing it
    budget = process_memory().budget
    store._writes.close()
    taken = budget.limit - budget.total_bytes - 50 * KIB
    budget.hold("probe", taken)
    try:
        with opened(tmp_path, background=False) as again:
            budget.hold("probe", -taken)
            taken = 0
            assert content(again) == Counter((key, 400_000, text[:8]) for key, text in new)
    finally:
        budget.hold("probe", -taken)
    store._guard.close()


def test_what_is_being_replayed_is_not_flushed_for_another_store(tmp_path, monkeypatch):
    """Another thread's store that finds no memory asks for it; half of a write would be lost."""
    for key in range(3):
        with opened(tmp_path, background=False) as store:
            store.append("s", *batch((key, b"row")))
    insert = WritePath.insert
    flushed = []

    def insert_while_others_ask(path, *write):
        insert(path, *write)
        memory = process_memory()
        asking = Thread(target=lambda: flushed.append(memory.relieve(None)))
        asking.start()
        asking.join()

    monkeypatch.setattr(WritePath, "insert", insert_while_others_ask)
    with opened(tmp_path, background=False) as store:
        assert flushed == [False] * 3
        assert sum(content(store).values()) == 3


def test_a_store_that_is_being_opened_can_be_asked_for_memory(tmp_path, monkeypatch):
    asked = []

    class AskedMeanwhile(WritePath):
        def __init__(self, *arguments, **options):
            asked.append((process_memory().bytes_beside(None), process_memory().relieve(None)))
            super().__init__(*arguments, **options)

    monkeypatch.setattr("lsmstate.lsm.store.WritePath", AskedMeanwhile)
    opened(tmp_path).close()
    assert asked == [(0, False)]
