"""An I/O error in ``close`` is raised, and leaves nothing behind: what can be released is, a second
close does nothing, and the state can be opened again in the same process."""

import errno
import gc
import os
import shutil
import threading
from contextlib import contextmanager

import pyarrow as pa
import pytest

from lsmstate.errors import CorruptionError, StoreClosedError
from lsmstate.join import MultiwayJoin, State
from lsmstate.lsm.directory_lock import check_unowned
from lsmstate.memory_backend import store as memory_store
from lsmstate.opening import BACKENDS, open_attempt, open_checkpoint, open_store
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from lsmstate.rocksdb_backend import store as rocks_store
from lsmstate.store import StreamSchema
from support.faults import Faults, faults, in_use
from support.sampling import each_value

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64())])
STREAM = StreamSchema("s", KEY, ROWS)
SMALL = Options(memory_bytes=6 << 20, memtable_bytes=256 << 10, background=False)


def append(store, *values, key=1):
    rows = pa.record_batch([pa.array(values, pa.int64())], schema=ROWS)
    keys = pa.record_batch([pa.array([key] * len(values), pa.int64())], schema=KEY)
    store.append("s", rows, keys)


def values_of(store):
    return store.get("s", 1).column(0).to_pylist()


@contextmanager
def gone(path):
    """The directory is away meanwhile: what RocksDB writes into it fails."""
    os.rename(path, f"{path}-away")
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.rename(f"{path}-away", path)


@contextmanager
def failing(monkeypatch, module, name):
    def fail(*_, **__):
        raise OSError(errno.EIO, f"injected fault in {name}")

    with monkeypatch.context() as patched:
        patched.setattr(module, name, fail)
        yield


def check_nothing_is_held():
    gc.collect()
    memory = process_memory()
    assert not memory._open()
    held = in_use(memory.budget)
    assert not {"memtable", "frames", "probe", "merge"} & held.keys(), held
    assert not list(memory_store._open_stores)


def test_a_rocksdb_store_is_closed_and_opened_again_after_an_error(tmp_path):
    store = open_store(tmp_path, [STREAM], backend="rocksdb")
    append(store, 1)
    probe = store.probe("s", pa.record_batch([[1]], schema=KEY))
    with gone(str(tmp_path / "db")), pytest.raises(OSError, match="No such file"):
        store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        append(store, 2)
    with pytest.raises(StoreClosedError):
        list(probe.fetch([0], 100))
    with open_store(tmp_path, [STREAM], backend="rocksdb") as again:
        assert values_of(again) == [1], "acknowledged, so in RocksDB's log"
        append(again, 2)
    with open_store(tmp_path, [STREAM], backend="rocksdb") as again:
        assert values_of(again) == [1, 2]


def test_an_open_iterator_does_not_keep_a_closed_rocksdb_store(tmp_path):
    store = open_store(tmp_path, [STREAM], backend="rocksdb")
    append(store, *range(100_000))
    pieces = store.iterate("s", max_bytes=1000)
    next(pieces)
    store.close()
    with open_store(tmp_path, [STREAM], backend="rocksdb") as again:
        assert len(values_of(again)) == 100_000
    with pytest.raises(StoreClosedError):
        next(pieces)


def test_a_rocksdb_attempt_is_closed_after_an_error(tmp_path, monkeypatch):
    def opened(pointer=None):
        return open_attempt(
            tmp_path, [STREAM], backend="rocksdb", pointer=pointer, batch_id=0, attempt_id="a"
        )

    store = opened()
    append(store, 1)
    injected = pytest.raises(OSError, match="injected fault")
    with failing(monkeypatch, rocks_store.RocksAttempts, "seal"), injected:
        store.commit()
    pointer = store.commit()
    with failing(monkeypatch, rocks_store.shutil, "rmtree"), pytest.raises(OSError, match="rmtree"):
        store.close()
    store.close()
    with opened(pointer) as again:
        assert values_of(again) == [1]
    with failing(monkeypatch, rocks_store, "link_files"), injected:
        opened(pointer)
    assert [name for name in os.listdir(tmp_path) if name.startswith("rocks-")] == [pointer]


def test_a_rocksdb_snapshot_is_closed_after_an_error(tmp_path, monkeypatch):
    with open_store(tmp_path, [STREAM], backend="rocksdb") as store:
        append(store, 1)
        first, second = store.snapshot(), store.snapshot()
        with failing(monkeypatch, rocks_store.shutil, "rmtree"):
            with pytest.raises(OSError, match="rmtree"):
                first.close()
            first.close()
            assert values_of(second) == [1]
            with pytest.raises(OSError, match="rmtree") as caught:
                store.close()
        assert not second.is_open
        assert not getattr(caught.value, "__notes__", []), "one error, no more"
    with open_store(tmp_path, [STREAM], backend="rocksdb") as store:
        assert values_of(store) == [1]
    assert not [name for name in os.listdir(tmp_path) if name.startswith("snapshot-")]


@pytest.mark.parametrize("kind", ["standalone", "attempt"])
def test_a_memory_store_is_closed_after_an_error(tmp_path, monkeypatch, kind):
    def opened():
        if kind == "standalone":
            return open_store(tmp_path, [STREAM], backend="memory")
        return open_attempt(tmp_path, [STREAM], backend="memory", batch_id=0, attempt_id="a")

    store = opened()
    append(store, 1)
    with failing(monkeypatch, os, "unlink"), pytest.raises(OSError, match="unlink"):
        store.close()
    store.close()
    check_nothing_is_held()
    with opened() as again:
        assert values_of(again) == []
        append(again, 2)
        again.commit()


def test_a_memory_store_whose_commit_failed_is_closed(tmp_path, monkeypatch):
    store = open_store(tmp_path, [STREAM], backend="memory")
    append(store, 1)
    store.commit()
    append(store, 2)
    with failing(monkeypatch, os, "fsync"), pytest.raises(OSError, match="fsync"):
        store.commit()
    store.close()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".open")]
    with open_store(tmp_path, [STREAM], backend="memory") as again:
        assert values_of(again) == [1]


def test_a_memory_store_that_cannot_be_loaded_holds_nothing(tmp_path):
    with open_store(tmp_path, [STREAM], backend="memory") as store:
        append(store, *range(1000))
        store.commit()
        append(store, 1)
        store.commit()
    first = max(tmp_path.glob("*.mem"))
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    with pytest.raises(CorruptionError) as caught:
        open_store(tmp_path, [STREAM], backend="memory")
    assert not list(memory_store._open_stores), "also while the error is alive"
    check_unowned(str(tmp_path))
    del caught


@pytest.mark.parametrize("fail_at", [0, 1, 2, 5])
def test_an_lsm_attempt_is_closed_after_an_error(tmp_path, fail_at):
    """Without a commit, ``close`` deletes its runs; the others go when one cannot be deleted."""
    store = open_attempt(tmp_path, [STREAM], batch_id=0, attempt_id="a", options=SMALL)
    for key in range(60):
        append(store, *range(6000), key=key)
    snapshot = store.snapshot()
    files = len(os.listdir(tmp_path))
    assert files > 2
    with faults(Faults(fail_at, operations=("remove",), code=errno.EIO)) as hook:
        if fail_at < files:
            with pytest.raises(OSError, match="injected"):
                store.close()
        else:
            store.close()
    assert len(os.listdir(tmp_path)) == hook.failed
    assert not snapshot.is_open
    store.close()
    check_nothing_is_held()


@each_value(times=2, operation=["append", "sync", "create", "rename"], fail_at=range(0, 12, 2))
def test_an_lsm_store_is_closed_whatever_failed_before(tmp_path, operation, fail_at):
    store = open_store(tmp_path, [STREAM], options=SMALL)
    append(store, -1)
    store.commit()
    threads = threading.active_count()
    with faults(Faults(fail_at, operations=(operation,), more=10**6, code=errno.EIO)):
        try:
            for key in range(2, 30):
                append(store, *range(3000), key=key)
                store.snapshot()
                store.checkpoint(f"c{key}")
        except (OSError, StoreClosedError):
            pass
        errors = []
        try:
            store.close()
        except OSError as error:
            errors.append(str(error))
        assert all("injected" in error for error in errors)
    store.close()
    check_nothing_is_held()
    assert threading.active_count() <= threads
    with open_store(tmp_path, [STREAM], options=SMALL) as again:
        assert values_of(again) == [-1]
        append(again, 0)
        again.checkpoint("last")
    with open_checkpoint(tmp_path, "last") as found:
        assert values_of(found) == [-1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_join_is_closed_after_an_error(tmp_path, monkeypatch, backend):
    schema = pa.schema([("k", pa.int64())])

    def opened(path):
        return MultiwayJoin(
            {"a": schema, "b": schema}, on="a.k = b.k", state=State(backend=backend, state_dir=path)
        )

    for path in (None, str(tmp_path / "kept")):
        join = opened(path)
        list(join.process("a", pa.record_batch([[1]], schema=schema)))
        join.commit()
        directory = join._store._directory

        def fail(close=join._store.close):
            close()
            raise OSError(errno.EIO, "injected fault in close")

        monkeypatch.setattr(join._store, "close", fail)
        with pytest.raises(OSError, match="injected"):
            join.close()
        assert os.path.exists(directory) == (path is not None)
        join.close()
        check_nothing_is_held()
    with opened(path) as join:
        (piece,) = join.process("b", pa.record_batch([[1]], schema=schema))
        assert piece.num_rows == 1
