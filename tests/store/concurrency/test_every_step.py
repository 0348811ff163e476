"""Interrupts at every step of calls that take what others need: locks, files, memory, threads."""

import gc
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import pyarrow as pa
import pytest

from lsmstate.errors import (
    InvalidArgumentError,
    MemoryLimitError,
    StoreClosedError,
    StoreLockedError,
)
from lsmstate.expiry.store import ExpiringStore
from lsmstate.expiry_rules import Expiry
from lsmstate.lsm.checkpoints import CheckpointPin
from lsmstate.lsm.store import LsmStore
from lsmstate.memory_backend.store import MemoryStore
from lsmstate.options import MIB, Options
from lsmstate.process import background_worker as background
from lsmstate.process.background_worker import Worker
from lsmstate.process.memory_budget import process_memory
from lsmstate.remote.directory import piece_memory
from lsmstate.remote.file_cache import FileCache
from lsmstate.store import Mutation, StreamSchema
from support.every_step import each_step, lost_interrupts  # noqa: F401 - a fixture
from support.sampling import some_or_every

pytestmark = pytest.mark.usefixtures("lost_interrupts")

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("n", pa.int64()), ("at", pa.int64())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(memory_bytes=8 * MIB, sync="never", background=False)


def keys_of(numbers):
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=KEY)


def rows_of(numbers, times):
    columns = [pa.array(numbers, pa.int64()), pa.array(times, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def found(store, stream="s"):
    return Counter(n for rows in store.scan(stream) for n in rows.column("n").to_pylist())


def in_time(function):
    """What another thread's call returns, within 20 seconds."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(20)
    assert results, "it waits for what nobody gives back"
    return results[0]


# The worker -----------------------------------------------------------------------------------


class Job:
    is_urgent = False

    def __init__(self):
        self.done = threading.Event()

    def advance(self, max_bytes):
        self.done.set()
        return True


def test_a_worker_is_there_after_an_interrupted_submission_and_ends():
    for step in each_step():
        worker = Worker()
        step.call(worker.submit, Job())
        following = Job()
        worker.submit(following)
        assert following.done.wait(20)
        assert in_time(lambda worker=worker: worker.stop() or True)
        assert not worker.has_thread


def test_a_store_with_a_worker_goes_on_after_an_interrupted_append(tmp_path, monkeypatch):
    options = Options(memory_bytes=8 * MIB, sync="never", background=True, memtable_bytes=1 << 18)
    for place, step in enumerate(each_step(every=47)):
        monkeypatch.setattr(background, "_worker", Worker())
        with LsmStore.open(str(tmp_path / str(place)), [STREAM], options=options) as store:
            batches = [range(first, first + 6000) for first in (0, 6000)]
            store.append("s", rows_of(batches[0], batches[0]), keys_of(batches[0]))
            step.call(store.append, "s", rows_of(batches[1], batches[1]), keys_of(batches[1]))
        assert in_time(lambda: background.worker().stop() or True)


# Stores ---------------------------------------------------------------------------------------


class Bucket:
    """A directory, and the attempts at its batches."""

    def __init__(self, backend, directory):
        self.backend, self.directory = backend, directory

    def attempt(self, batch_id, pointer):
        return self.backend.open_attempt(
            self.directory,
            [STREAM],
            pointer=pointer,
            batch_id=batch_id,
            attempt_id="a",
            options=OPTIONS,
        )

    def first(self):
        store = self.attempt(1, None)
        store.append("s", rows_of([1, 2], [0, 0]), keys_of([1, 2]))
        return store

    def check_second(self, pointer):
        with self.attempt(2, pointer) as store:
            assert found(store) == {1: 1, 2: 1}


def buckets_at_each_step(root, backend, every):
    steps = each_step(1 if every else 17)
    for place, step in enumerate(steps):
        yield Bucket(backend, str(root / str(place))), step


@pytest.mark.parametrize("backend", [LsmStore, MemoryStore])
@some_or_every
def test_an_interrupted_close_is_repeated_and_loses_no_commit(tmp_path, backend, every):
    for bucket, step in buckets_at_each_step(tmp_path, backend, every):
        store = bucket.first()
        pointer = store.commit()
        step.call(store.close)
        store.close()
        store.close()
        bucket.check_second(pointer)


@pytest.mark.parametrize("backend", [LsmStore, MemoryStore])
@some_or_every
def test_an_interrupted_commit_of_an_attempt_can_be_made_again(tmp_path, backend, every):
    for bucket, step in buckets_at_each_step(tmp_path, backend, every):
        with bucket.first() as store:
            step.call(store.commit)
            if not store._guard.is_usable:
                continue
            pointer = store.commit()
            assert store.commit() == pointer
        bucket.check_second(pointer)


@some_or_every
def test_a_memory_store_is_committed_after_an_interrupted_commit(tmp_path, every):
    for place, step in enumerate(each_step(1 if every else 17)):
        directory = str(tmp_path / str(place))
        with MemoryStore.open(directory, [STREAM], options=OPTIONS) as store:
            store.append("s", rows_of([1], [0]), keys_of([1]))
            if step.call(store.commit) and store._guard.is_usable:
                store.append("s", rows_of([2], [0]), keys_of([2]))
                store.commit()
                assert found(store) == {1: 1, 2: 1}
        with MemoryStore.open(directory, [STREAM], options=OPTIONS) as store:
            assert found(store).keys() <= {1, 2}


@some_or_every
def test_an_interrupted_snapshot_leaves_nothing_charged(tmp_path, every):
    gc.collect()
    before = process_memory().budget.usage()
    for place, step in enumerate(each_step(1 if every else 13)):
        with LsmStore.open(str(tmp_path / str(place)), [STREAM], options=OPTIONS) as store:
            store.append("s", rows_of([1, 2], [0, 0]), keys_of([1, 2]))

            def snapshot(store=store):
                with store.snapshot() as seen:
                    assert found(seen) == {1: 1, 2: 1}

            step.call(snapshot)
            assert found(store) == {1: 1, 2: 1}
        held = process_memory().budget.usage()
        assert [held[name] for name in ("memtable", "frames")] == [
            before[name] for name in ("memtable", "frames")
        ]


def test_stores_that_nobody_holds_are_collected_before_one_more_is_refused(tmp_path):
    """Every store is part of a cycle. One that a user's own destructor waits for is no reason to
    wait in a circle."""
    gc.collect()
    gc.disable()
    options = Options(memory_bytes=6 * MIB, sync="never", background=False)
    waits, lock = threading.Event(), threading.Lock()

    class Owner:
        def __del__(self):
            with lock:
                waits.set()

    def close_another(store):
        with lock:
            waits.wait(0.2)
            store.close()

    try:
        stores = [
            LsmStore.open(str(tmp_path / str(number)), [STREAM], options=options)
            for number in range(2)
        ]
        with pytest.raises(MemoryLimitError, match="3 open stores"):
            LsmStore.open(str(tmp_path / "more"), [STREAM], options=options)
        owner = Owner()
        owner.itself = owner
        del owner
        thread = threading.Thread(target=close_another, args=[stores.pop()], daemon=True)
        thread.start()
        stores.clear()
        open_one = LsmStore.open(str(tmp_path / "more"), [STREAM], options=options)
        open_one.close()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()


def open_into(stores, directory):
    stores.append(LsmStore.open(directory, [STREAM], options=OPTIONS))


@some_or_every
def test_a_store_is_opened_after_an_interrupted_opening(tmp_path, every):
    """Though the exception is kept; but for the three steps in which what has just come about, the
    lock and the store (twice), is being returned: the interrupt's frame leads to who had it."""
    directory, locked = str(tmp_path), []
    with LsmStore.open(directory, [STREAM], options=OPTIONS) as store:
        store.append("s", rows_of([1], [0]), keys_of([1]))
        store.commit()
        store.append("s", rows_of([2], [0]), keys_of([2]))
    for place, step in enumerate(each_step(1 if every else 29)):
        opened = []
        step.call(open_into, opened, directory)
        for store in opened:
            store.close()
        try:
            open_into(opened, directory)
        except StoreLockedError:
            locked.append(place)
            step.interrupt = None
            open_into(opened, directory)
        with opened[-1] as store:
            assert found(store) == {1: 1, 2: 1}
    assert len(locked) <= 3, locked


def is_deleted(store, name):
    with suppress(InvalidArgumentError):
        store.checkpoints.delete(name)
    return not list(store.checkpoints)


@some_or_every
def test_a_checkpoint_can_be_deleted_after_interrupted_readers_and_deletions(tmp_path, every):
    for place, step in enumerate(each_step(1 if every else 13)):
        directory = str(tmp_path / str(place))
        with LsmStore.open(directory, [STREAM], options=OPTIONS) as store:
            store.append("s", rows_of([1], [0]), keys_of([1]))
            store.checkpoint("one")
            reader = LsmStore.open_checkpoint(directory, "one", options=OPTIONS)
            step.call(reader.close)
            reader.close()
            step.call(store.checkpoints.delete, "one")
            if "one" in [each.name for each in store.checkpoints]:
                store.checkpoints.delete("one")
            assert not list(store.checkpoints)


def test_an_interrupted_pin_is_given_up_unless_it_is_being_returned(tmp_path):
    pinned, steps = [], 0
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        for steps, step in enumerate(each_step()):
            store.checkpoint("one")
            step.call(CheckpointPin, str(tmp_path), "one")
            if not is_deleted(store, "one"):
                pinned.append(steps)
                step.interrupt = None
                assert is_deleted(store, "one")
    assert steps > 10
    assert pinned in ([], [steps - 1])


def test_other_threads_have_the_file_cache_after_an_interrupt(tmp_path):
    cache = FileCache(str(tmp_path / "cache"), 100 * MIB)
    directory = cache.bucket_directory("state", "0")
    for place, step in enumerate(each_step()):
        step.call(cache.begin, f"{directory}/{place}", 1000)
        assert in_time(lambda: cache.used_bytes() or True)


def test_pieces_are_not_charged_after_an_interrupt():
    def work():
        with piece_memory():
            len([])

    before = process_memory().budget.usage()["frames"]
    for step in each_step():
        step.call(work)
        assert process_memory().budget.usage()["frames"] == before


# Streams with expiry --------------------------------------------------------------------------


def expiring(directory):
    timed = StreamSchema("timed", KEY, ROWS, expiry=Expiry("at", 40))
    return ExpiringStore(
        [timed], OPTIONS, lambda streams: LsmStore.open(directory, streams, options=OPTIONS)
    )


def working(store, stack, directory):
    """The store, or if it says that it failed, the one that it is opened as again."""
    try:
        store._inner.write([])
    except StoreClosedError:
        store.close()
        return stack.enter_context(expiring(directory))
    return store


def written(store, numbers, at):
    store.append("timed", rows_of(numbers, [at] * len(numbers)), keys_of(numbers))


@pytest.mark.parametrize("empty", [False, True], ids=["", "then nothing is written"])
@some_or_every
def test_an_interrupted_advance_moves_each_row_once(tmp_path, empty, every):
    for place, step in enumerate(each_step(7 if every else 197)):
        directory = str(tmp_path / str(place))
        with ExitStack() as stack:
            store = stack.enter_context(expiring(directory))
            store.advance("timed", 0)
            written(store, [100], 0)  # the time ring is around it
            written(store, range(20), 400)
            step.call(store.advance, "timed", 400)
            store = working(store, stack, directory)
            if empty:
                store.write([])
            store.advance("timed", 400)
            assert found(store, "timed") == dict.fromkeys(range(20), 1)
        with expiring(directory) as store:
            assert found(store, "timed") == dict.fromkeys(range(20), 1)


@pytest.mark.parametrize("refused", [False, True], ids=["made", "refused"])
@some_or_every
def test_rows_are_seen_after_an_interrupted_write(tmp_path, refused, every):
    """Also one that is refused; what is written then is there when the store is opened again."""
    for place, step in enumerate(each_step(3 if every else 67)):
        directory = str(tmp_path / str(place))

        def write(store):
            good = Mutation("append", "timed", keys_of([1]), rows_of([1], [1000]))
            bad = Mutation("append", "timed", keys_of([1, 2]), rows_of([1], [1000]))
            try:
                store.write([good, bad] if refused else [good])
            except InvalidArgumentError:
                assert refused

        with ExitStack() as stack:
            store = stack.enter_context(expiring(directory))
            store.advance("timed", 0)
            step.call(write, store)
            store = working(store, stack, directory)
            seen = found(store, "timed")
            assert seen in ({}, {1: 1})
            assert not (refused and seen)
            written(store, [2], 1000)
            assert found(store, "timed") == {**seen, 2: 1}
        with expiring(directory) as store:
            assert found(store, "timed") == {**seen, 2: 1}
