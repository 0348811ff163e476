"""The system drops a lock without a word: whoever owned the directory must notice before it says
that a write is done."""

import os
import shutil
import timeit

import pytest

from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import StoreClosedError, StoreLockedError
from lsmstate.lsm.directory_lock import DirectoryLock
from lsmstate.lsm.wal import Changelog
from lsmstate.opening import open_store
from lsmstate.options import MIB, Options
from support.child_process import in_child
from support.sample_streams import STREAMS, customers, ids, keys_of, scanned

OPTIONS = Options(memory_bytes=16 * MIB, background=False)
#: Replays no log into runs when it opens.
UNSYNCED = Options(memory_bytes=16 * MIB, background=False, sync="never")


def opened(directory, options=OPTIONS, backend="lsm"):
    return open_store(str(directory), STREAMS, options=options, backend=backend)


def append(store, *numbers):
    store.append("customers", customers(*numbers), keys_of(*numbers))


def all_ids(directory, **how):
    with opened(directory, **how) as store:
        return sorted(ids(scanned(store, "customers")))


def lose_lock(directory):
    """As any copy of the directory does."""
    shutil.copyfile(directory / "LOCK", os.devnull)


def another_process(directory, *, commits=True, **how):
    """Opens the store, appends 20 rows that it says are done, and ends."""

    def work():
        store = opened(directory, **how)
        append(store, *range(1000, 1020))
        if commits:
            store.commit()

    in_child(work)


ACTIONS = {
    "append": lambda store: append(store, 5),
    "delete": lambda store: store.delete("customers", keys_of(1)),
    "commit": lambda store: store.commit(),
    "checkpoint": lambda store: store.checkpoint("b"),
    "delete checkpoint": lambda store: store.checkpoints.delete("a"),
}


@pytest.mark.parametrize("options", [OPTIONS, UNSYNCED], ids=["commit", "never"])
@pytest.mark.parametrize("action", ACTIONS)
def test_who_lost_the_directory_to_another_process_acknowledges_nothing(tmp_path, action, options):
    store = opened(tmp_path, options)
    append(store, 1)
    store.checkpoint("a")
    append(store, 2)
    lose_lock(tmp_path)
    another_process(tmp_path, options=options)
    files = sorted(os.listdir(tmp_path))
    with pytest.raises(StoreLockedError, match=f"another process .[0-9]+. while .*{os.getpid()}"):
        ACTIONS[action](store)
    with pytest.raises((StoreLockedError, StoreClosedError)):
        append(store, 6)
    store.close()
    assert sorted(os.listdir(tmp_path)) == files
    assert all_ids(tmp_path) == [1, 2, *range(1000, 1020)]


def test_the_one_who_has_it_now_is_named(tmp_path):
    store = opened(tmp_path)
    append(store, 1)
    lose_lock(tmp_path)
    told, tell = os.pipe()
    asked, ask = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ask)  # so that it ends, whatever becomes of the test
        other = opened(tmp_path)
        append(other, 2)
        os.write(tell, b"x")
        if os.read(asked, 1):
            append(other, 3)
            os._exit(0)
        os._exit(1)
    os.close(tell)
    assert os.read(told, 1)
    with pytest.raises(StoreLockedError, match=f"another process .{child}.*not acknowledged"):
        append(store, 4)
    store.close()  # its end takes no lock away from the other one
    with pytest.raises(StoreLockedError, match=f"in another process .{child}."):
        opened(tmp_path)
    os.write(ask, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all_ids(tmp_path) == [1, 2, 3]


def test_a_lock_that_nobody_took_is_taken_again(tmp_path):
    with opened(tmp_path) as store:
        append(store, 1)
        lose_lock(tmp_path)
        append(store, 2)

        def refused():
            with pytest.raises(StoreLockedError, match="open in another process"):
                opened(tmp_path)

        in_child(refused)
        store.commit()
    assert all_ids(tmp_path) == [1, 2]


def test_a_write_during_which_it_is_lost_is_not_acknowledged(tmp_path, monkeypatch):
    """Another process may have read the log already, without this record."""
    append_record = Changelog.append

    def slow(self, writes):
        monkeypatch.undo()
        lose_lock(tmp_path)
        another_process(tmp_path)
        append_record(self, writes)

    with opened(tmp_path) as store:
        append(store, 1)
        monkeypatch.setattr(Changelog, "append", slow)
        with pytest.raises(StoreLockedError, match="another process"):
            append(store, 2)
        with pytest.raises(StoreClosedError, match="StoreLockedError"):
            append(store, 3)
    assert all_ids(tmp_path) == [1, *range(1000, 1020)]


def test_a_removed_lock_is_lost(tmp_path):
    with opened(tmp_path) as store:
        append(store, 1)
        (tmp_path / "LOCK").unlink()
        another_process(tmp_path)
        with pytest.raises(StoreLockedError, match=r"LOCK.*was removed"):
            append(store, 2)
    assert all_ids(tmp_path) == [1, *range(1000, 1020)]


def test_the_memory_backend_does_not_commit_over_another_process(tmp_path):
    with opened(tmp_path, backend="memory") as store:
        append(store, 1)
        store.commit()
        append(store, 2)
        lose_lock(tmp_path)
        another_process(tmp_path, backend="memory")
        with pytest.raises(StoreLockedError, match="another process"):
            store.commit()
    assert all_ids(tmp_path, backend="memory") == [1, *range(1000, 1020)]


def test_asking_costs_microseconds(tmp_path):
    lock = DirectoryLock(str(tmp_path))

    def ask():
        lock.check_held()
        lock.check_untaken()

    best = min(timeit.repeat(ask, number=1000, repeat=5)) / 1000
    lock.release()
    print(f"{best * 1e6:.1f} us")
    assert best < 100e-6  # about 5; more only on a loaded machine


def test_a_commit_in_the_middle_of_which_the_lock_is_lost_is_not_acknowledged(tmp_path):
    """What it would then delete is the other owner's."""
    store = opened(tmp_path)
    append(store, *range(10))
    store.commit()
    append(store, *range(10, 20))

    def lose(operation, path, offset, size):
        if operation == "create" and os.path.basename(path).startswith("MANIFEST"):
            set_fault_hook(None)
            lose_lock(tmp_path)
            another_process(tmp_path)

    set_fault_hook(lose)
    try:
        with pytest.raises(StoreLockedError, match="opened by another process"):
            store.commit()
    finally:
        set_fault_hook(None)
    store.close()
    assert all_ids(tmp_path) == [*range(20), *range(1000, 1020)]
