"""One process owns a directory: within the process, across processes, and over a fork."""

import fcntl
import gc
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from lsmstate import Options, StreamSchema, open_store
from lsmstate.errors import StoreLockedError
from lsmstate.lsm.directory_lock import DirectoryLock
from support.paths import ROOT

HOLD = """
import sys
from lsmstate.lsm.directory_lock import DirectoryLock
lock = DirectoryLock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_owns_a_directory_once(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    with pytest.raises(StoreLockedError, match=f"already open in this process .{os.getpid()}"):
        DirectoryLock(f"{tmp_path}/../{tmp_path.name}")
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).release()


def test_of_two_threads_one_gets_the_directory(tmp_path, monkeypatch):
    """The system's lock is the process's: it stops neither, so the other one must be refused
    while the first is still at it."""
    lockf, others = fcntl.lockf, []

    def slow(file, operation):
        monkeypatch.setattr(fcntl, "lockf", lockf)
        with pytest.raises(StoreLockedError, match="already open in this process") as refused:
            DirectoryLock(str(tmp_path))
        others.append(refused)
        lockf(file, operation)

    monkeypatch.setattr(fcntl, "lockf", slow)
    DirectoryLock(str(tmp_path)).release()
    assert len(others) == 1


def test_a_lock_nobody_holds_any_more_is_given_up_with_a_warning(tmp_path):
    lock = [DirectoryLock(str(tmp_path))]
    lock.append(lock)
    del lock
    with pytest.warns(ResourceWarning, match=f"{tmp_path.name} was never closed"):
        gc.collect()
    DirectoryLock(str(tmp_path)).release()


def test_an_opening_that_fails_claims_nothing(tmp_path, monkeypatch):
    def fails(file, size):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="No space left"):
            DirectoryLock(str(tmp_path))
    DirectoryLock(str(tmp_path)).release()


def test_another_process_is_named_and_its_death_frees_the_directory(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError, match=f"another process .{holder.pid}"):
            DirectoryLock(str(tmp_path))
    finally:
        holder.kill()
        holder.communicate()
    DirectoryLock(str(tmp_path)).release()


FORK_AND_HOLD = """
import os, sys, time
import pyarrow as pa
from lsmstate import Options, StreamSchema, open_store
schema = pa.schema([("k", pa.int64())])
store = open_store(sys.argv[1], [StreamSchema("s", schema, schema)], options=Options())
batch = pa.record_batch([pa.array([1, 2, 3])], schema=schema)
store.append("s", batch, batch)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(os.getpid(), child, flush=True)
sys.stdin.read()
"""


def test_a_child_that_outlives_its_parent_holds_nothing(tmp_path):
    """Two processes at one store: the second is refused while the first lives, forked children or
    not, and goes on with what that had acknowledged as soon as it is dead."""
    schema = pa.schema([("k", pa.int64())])
    stream = StreamSchema("s", schema, schema)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", FORK_AND_HOLD, str(tmp_path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    said, child = holder.stdout.readline().split()
    try:
        assert int(said) == holder.pid
        with pytest.raises(StoreLockedError, match=f"another process .{holder.pid}"):
            open_store(str(tmp_path), [stream], options=Options())
        holder.kill()
        holder.wait()
        with open_store(str(tmp_path), [stream], options=Options()) as store:
            assert [piece.num_rows for piece in store.scan("s")] == [3]
        os.kill(int(child), 0)  # it is still there
    finally:
        holder.kill()
        os.kill(int(child), signal.SIGKILL)
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def test_a_forked_child_neither_owns_nor_frees_the_directory(tmp_path):
    lock = DirectoryLock(str(tmp_path))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lock.release()
            DirectoryLock(str(tmp_path))
        except StoreLockedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(StoreLockedError):
        DirectoryLock(str(tmp_path))
    lock.release()
