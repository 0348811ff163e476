"""Nobody keeps the disk of deleted files: a store that is closed closes its files."""

import gc
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.join import MultiwayJoin, State
from lsmstate.lsm.store import LsmStore
from lsmstate.mapping import StoreMapping
from lsmstate.opening import BACKENDS, open_attempt, open_checkpoint, open_commit, open_store
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import RangeBounds, StreamSchema
from lsmstate.tools.export import export
from lsmstate.tools.restore import restore
from support.sampling import each_value

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
SMALL = Options(memory_bytes=8 * MIB, memtable_bytes=256 * KIB, file_bytes=256 * KIB)

backends = pytest.mark.parametrize("backend", BACKENDS)


def rows_of(first: int, count: int = 2000) -> pa.RecordBatch:
    keys = range(first, first + count)
    return pa.record_batch([pa.array(keys), [f"{key:064}" for key in keys]], schema=ROWS)


def deleted_files() -> list[str]:
    """The deleted files that this process has open."""
    gc.collect()
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # of listdir itself
            continue
        if name.endswith(" (deleted)"):
            found.append(name)
    return found


@pytest.fixture(autouse=True)
def check_files():
    before = deleted_files()
    yield
    assert deleted_files() == before


def fill(store, times: int = 6) -> None:
    for number in range(times):
        rows = rows_of(2000 * number)
        store.append("s", rows, rows.select(["k"]))


def read_all(store) -> int:
    return sum(piece.num_rows for piece in store.scan("s"))


@each_value(backend=BACKENDS, algorithm=["umjoin", "tree"], is_read=[True, False])
def test_a_temporary_join_leaves_no_open_file(backend, algorithm, is_read):
    before = deleted_files()
    tables = {"a": ROWS, "b": ROWS}
    for _ in range(2):
        join = MultiwayJoin(
            tables,
            "a.k = b.k",
            algorithm=algorithm,
            piece_bytes=1000,
            state=State(memory="24m", backend=backend),
        )
        for number in range(4):
            list(join.process("a", rows_of(2000 * number)))
            join.commit()
        results = join.process("b", rows_of(0))
        if is_read:
            assert sum(piece.num_rows for piece in results) == 2000
        else:
            next(results)
        join.close()
        assert deleted_files() == before


@backends
def test_a_closed_store_leaves_no_open_file(tmp_path, backend):
    with open_store(tmp_path / "s", [STREAM], backend=backend, options=SMALL) as store:
        fill(store)
        store.commit()
        snapshot = store.snapshot()
        entries = snapshot.iterate("s")
        next(entries)
        del entries
        assert read_all(store) == read_all(snapshot) == 12000
    shutil.rmtree(tmp_path / "s")


@each_value(backend=BACKENDS, is_retracted=[False, True], reads=["store", "snapshot"])
def test_reads_that_somebody_holds_leave_no_open_file(tmp_path, backend, is_retracted, reads):
    before = deleted_files()
    store = open_store(tmp_path / "s", [STREAM], backend=backend, options=SMALL)
    fill(store, 3)
    if is_retracted:
        gone = rows_of(0, 3)
        store.retract("s", gone, gone.select(["k"]))
    store.commit()
    reader = store if reads == "store" else store.snapshot()
    keys = rows_of(10).select(["k"])
    near = RangeBounds(low=pa.array([5, 2000]), high=pa.array([1000, 3000]))
    probe = reader.probe("s", keys)
    held = [
        probe.fetch(np.arange(2000), 1000),
        reader.scan("s", 1000),
        reader.iterate("s", max_bytes=1000),
        reader.iterate("s", max_bytes=1000, reverse=True),
        reader.probe_ranges("s", near, 1000),
        reader.probe_ranges("s", near, 1000, last=True),
        reader.probe_ranges("s", near, 1000, with_keys=True),
    ]
    if reads == "store":
        held.append(iter(StoreMapping(store, "s")))
    for each in held:
        next(each)
    store.close()
    shutil.rmtree(tmp_path / "s")
    assert deleted_files() == before
    for each in held:
        with pytest.raises(StoreClosedError, match="is closed; open it again"):
            list(each)
    with pytest.raises(StoreClosedError, match="is closed; open it again"):
        probe.fetch(np.arange(2), 1000)
    assert probe.counts.sum() == 2000


def test_readers_leave_no_open_file(tmp_path):
    place = tmp_path / "s"
    with open_store(place, [STREAM], options=SMALL) as store:
        fill(store)
        store.checkpoint("first")
        fill(store)
        store.compact()
    with open_checkpoint(place, "first") as found:
        assert read_all(found) == 12000
    export(place, str(tmp_path / "backup"), checkpoint="first")
    restore(str(tmp_path / "backup"), str(tmp_path / "copy"))
    with open_store(tmp_path / "copy", [STREAM], options=SMALL) as store:
        assert read_all(store) == 12000
    for name in ("s", "backup", "copy"):
        shutil.rmtree(tmp_path / name)


def test_a_refused_opening_leaves_no_open_file(tmp_path):
    place = tmp_path / "s"
    with open_store(place, [STREAM], options=SMALL) as store:
        fill(store)
    other = StreamSchema("other", KEY, ROWS)
    with pytest.raises(InvalidArgumentError, match="holds the streams s"):
        open_store(place, [other], options=SMALL)
    shutil.rmtree(place)
    tables = {"a": ROWS, "b": ROWS}
    with MultiwayJoin(tables, "a.k = b.k", state=State(state_dir=str(place), memory="24m")) as join:
        list(join.process("a", rows_of(0)))
        join.commit()
    with pytest.raises(InvalidArgumentError, match="belongs to a join"):
        MultiwayJoin(
            tables, "a.k = b.k AND a.text = b.text", state=State(state_dir=str(place), memory="24m")
        )
    shutil.rmtree(place)


@pytest.mark.parametrize("backend", ["lsm", "rocksdb"])
def test_attempts_close_files_that_are_gone(tmp_path, backend):
    def attempt(name: str, pointer: str | None, batch: int) -> str:
        with open_attempt(
            tmp_path / name,
            [STREAM],
            backend=backend,
            pointer=pointer,
            batch_id=batch,
            attempt_id="a",
            options=SMALL,
        ) as store:
            fill(store)
            return store.commit()

    first = attempt("gone", None, 0)
    attempt("gone", first, 1)
    shutil.rmtree(tmp_path / "gone")
    pointer = attempt("bucket", None, 0)  # which looks at the other directories too
    if backend == "lsm":
        with open_commit(tmp_path / "bucket", pointer) as store:
            assert read_all(store) == 12000
    shutil.rmtree(tmp_path / "bucket")
    attempt("last", None, 0)


def test_attempts_close_files_that_another_process_deleted(tmp_path):
    before = deleted_files()
    with open_attempt(tmp_path, [STREAM], batch_id=0, attempt_id="a", options=SMALL) as store:
        fill(store)
        pointer = store.commit()
        assert read_all(store) == 12000
    other = LsmStore.open_attempt(
        str(tmp_path), [STREAM], pointer=pointer, batch_id=1, attempt_id="b", options=SMALL
    )
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    assert len(deleted_files()) > len(before)
    other.close()
    assert deleted_files() == before
