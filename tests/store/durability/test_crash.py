"""File operations of a scripted workload fail or tear, one by one: nothing acknowledged is lost."""

import errno
import itertools
import os
import resource
import shutil
import signal

import pytest

from lsmstate.errors import StoreClosedError
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.lsm.store import LsmStore
from support.crash_cases import BATCHES, OPTIONS, SCRIPT, STATES, do, found, opened
from support.faults import Faults, faults
from support.sample_streams import STREAMS, customers, keys_of
from support.sampling import each_value, some_or_every


def run_script(store, crash):
    """How many steps were acknowledged before the first error; the store afterwards refuses or
    goes on correctly."""
    done = 0
    try:
        for step in SCRIPT:
            do(store, step)
            done += 1
    except OSError:
        if not crash:
            with pytest.raises(StoreClosedError, match="again"):
                store.append("customers", *BATCHES[0])
            with pytest.raises(StoreClosedError, match="again"):
                store.commit()
    return done


def standalone(directory, hook, crash, background=False):
    """(steps acknowledged, operations that failed); crash: in a process that just ends."""
    if not crash:
        with faults(hook):
            try:
                store = opened(directory, "always", background)
            except OSError:
                return 0, hook.failed
            done = run_script(store, crash)
        store.close()
        return done, hook.failed
    result, told = os.pipe()
    child = os.fork()
    if child == 0:
        done = 0
        try:
            with faults(hook):
                done = run_script(opened(directory, background=background), crash)
        finally:
            os.write(told, bytes([done, min(255, hook.failed)]))
            os._exit(0)
    os.close(told)
    done, failed = os.read(result, 2)
    os.close(result)
    os.waitpid(child, 0)
    return done, failed


def test_the_script_itself(tmp_path):
    assert standalone(tmp_path, Faults(), False) == (len(SCRIPT), 0)
    with opened(tmp_path) as store:
        assert found(store) == STATES[-1]
        assert store.stats().counters["merges"] == 0
        store.check()
    assert len(STATES[-1]) > 300


FAILURES = {
    "fails": (None, 0),
    "torn": (0.5, 0),
    "written but failed": (1.0, 0),
    "disk full from then on": (0.2, 1000),
}


@each_value(failure=FAILURES, background=[False, True], crash=[True, False])
@some_or_every
def test_a_standalone_store_keeps_what_it_acknowledged(
    memory_path, failure, crash, background, every
):
    tear, more = FAILURES[failure]
    step = 1 if every else (7 if tear is None else 17) * (1 + background)
    # How many operations there are varies with a worker: a merge may be done or given up. So each
    # failure is one operation later than the last, until there is none that late.
    for number in itertools.count(0, step):
        directory = memory_path / str(number)
        hook = Faults(number, tear=tear, more=more)
        done, failed = standalone(directory, hook, crash, background)
        for _ in range(2):
            with opened(directory) as store:
                state = found(store)
                store.check()
            allowed = STATES[done : done + 2]
            assert state in allowed, (number, done, len(state), [len(s) for s in allowed])
        with opened(directory) as store:
            store.append("customers", customers(10_000), keys_of(999))
            store.commit()
            assert found(store) == [*state, 10_000]
        shutil.rmtree(directory)
        if not failed:
            assert done == len(SCRIPT)
            assert number > 90
            return


def chain(directory, pointer, number, hook):
    """One attempt from a pointer; the pointer of its commit. After an error it refuses to go on."""
    store = LsmStore.open_attempt(
        str(directory), STREAMS, pointer=pointer, batch_id=number, attempt_id="a", options=OPTIONS
    )
    try:
        with faults(hook):
            for batch in (number * 2, number * 2 + 1):
                store.append("customers", *BATCHES[batch % 6])
            store.delete("customers", keys_of(number))
            store.append("customers", *BATCHES[(number + 1) % 6])
            return store.commit()
    except OSError:
        with pytest.raises(StoreClosedError):
            store.commit()
        raise
    finally:
        with faults(hook):
            store.close()


@pytest.mark.parametrize("tear", [None, 0.5, 1.0])
@some_or_every
def test_attempts_that_fail_leave_the_last_pointer_and_no_file(tmp_path, tear, every):
    pointer = None
    good = []
    for number in range(4):
        pointer = chain(tmp_path, pointer, number, Faults())
        with reader(tmp_path, pointer) as store:
            good.append((pointer, found(store)))
            live = {file.name for file in store._runs.version.files}
    assert live | {parse_pointer(p).name for p, _ in good} <= set(os.listdir(tmp_path))
    count = Faults()
    chain(tmp_path, pointer, 4, count)
    assert len(count.seen) >= 10, count.seen
    step = 1 if every else 2 if tear is None else 5
    for failing in range(0, len(count.seen), step):
        before = set(os.listdir(tmp_path))
        hook = Faults(failing, tear=tear)
        with pytest.raises(OSError, match=r"fault|torn") as caught:
            chain(tmp_path, pointer, 4, hook)
        assert caught.value.errno in (errno.ENOSPC, errno.EIO)
        left = set(os.listdir(tmp_path)) - before
        # Nothing but the file whose removal failed.
        removing = hook.seen[failing][0] == "remove"
        assert len(left) <= (1 if removing else 0), (failing, hook.seen[failing], left)
        with reader(tmp_path, pointer) as store:
            assert found(store) == good[-1][1]
    for older, expected in good:
        with reader(tmp_path, older) as store:
            assert found(store) == expected
            store.check()


def reader(directory, pointer):
    return LsmStore.open_attempt(
        str(directory),
        STREAMS,
        pointer=pointer,
        batch_id=99,
        attempt_id="reader",
        options=OPTIONS,
    )


def test_disk_full_is_an_os_error(tmp_path):
    store = opened(tmp_path)
    store.append("customers", *BATCHES[0])
    with (
        faults(Faults(0, more=10_000, tear=0.1)),
        pytest.raises(OSError, match=r"torn|fault"),
    ):
        store.append("customers", *BATCHES[1])
    store.close()
    with opened(tmp_path) as store:
        assert found(store) == STATES[1]


def test_a_read_that_fails_is_an_error_and_not_an_absent_key(tmp_path):
    with opened(tmp_path) as store:
        for batch in BATCHES:
            store.append("customers", *batch)
        store.commit()
    with opened(tmp_path) as store:
        store._memory.cache.clear()
        hook = Faults(0, code=errno.EIO, operations=("read",))
        with faults(hook), pytest.raises(OSError, match="fault"):
            store.probe("customers", keys_of(*range(50)))
        assert hook.failed == 1
        assert sum(store.probe("customers", keys_of(*range(50))).counts.tolist()) == 720


def test_the_systems_own_limit_on_a_file_loses_nothing(tmp_path):
    """No hook: the kernel cuts a write short and then refuses, as it does on a full disk."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        done, refused = 0, b"-"
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            store = opened(tmp_path)
            store.append("customers", *BATCHES[0])
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
            for batch in BATCHES[1:]:
                done += 1
                store.append("customers", *batch)
        except OSError as error:
            refused = b"+" if error.errno == errno.EFBIG and error.filename else b"-"
        finally:
            os.write(tell, bytes([done]) + refused)
            os._exit(0)
    os.waitpid(child, 0)
    done, refused = os.read(told, 1)[0], os.read(told, 1)
    os.close(told)
    os.close(tell)
    assert refused == b"+"
    assert done == 1
    with opened(tmp_path) as store:
        assert found(store) == STATES[1]
        store.append("customers", *BATCHES[1])
        store.commit()
        assert found(store) == STATES[2]
        store.check()
