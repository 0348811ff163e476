"""The contract suite on the reference backends, and what is theirs alone."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

from lsmstate import export, restore
from lsmstate.errors import (
    CorruptionError,
    InvalidArgumentError,
    MemoryLimitError,
    StoreClosedError,
)
from lsmstate.memory_backend import store as memory_store
from lsmstate.memory_backend import table as memory_table
from lsmstate.opening import open_attempt, open_checkpoint, open_commit, open_store
from lsmstate.options import MIB, Options
from lsmstate.store import Mutation, StreamSchema
from support.examples import examples
from support.sample_streams import CUSTOMERS, KEY, STREAMS, customers, ids, keys_of, scanned
from support.store_contract import StateStoreTests
from support.store_machine import store_machine


class TestMemoryStore(StateStoreTests):
    backend = "memory"

    def committed(self, directory):
        store = self.attempt(directory)
        store.append("customers", customers(*range(50)), keys_of(*range(50)))
        pointer = store.commit()
        store.close()
        return pointer

    @pytest.mark.parametrize("place", [0.2, 0.5, 0.9, 0.999])
    def test_a_damaged_file_is_an_error_that_names_it(self, tmp_path, place):
        pointer = self.committed(tmp_path)
        memory_store._kept.clear()
        (path,) = tmp_path.glob("*.mem")
        data = bytearray(path.read_bytes())
        data[int(len(data) * place)] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(CorruptionError, match=path.name):
            self.attempt(tmp_path, pointer, 2)

    def test_a_short_file_is_an_error(self, tmp_path):
        pointer = self.committed(tmp_path)
        memory_store._kept.clear()
        (path,) = tmp_path.glob("*.mem")
        for size in (0, 20, path.stat().st_size - 1):
            os.truncate(path, size)
            with pytest.raises(CorruptionError, match=path.name):
                self.attempt(tmp_path, pointer, 2)

    def test_a_kept_state_is_handed_out_once_and_equals_the_files(self, tmp_path):
        pointer = self.committed(tmp_path)
        first = self.attempt(tmp_path, pointer, 2)
        first.append("customers", customers(100), keys_of(1))
        second = self.attempt(tmp_path, pointer, 2)
        assert len(scanned(first, "customers")) == 51
        assert ids(scanned(second, "customers")) == ids(
            sorted(scanned(second, "customers"), key=lambda row: row["id"])
        )
        assert len(scanned(second, "customers")) == 50
        first.close()
        second.close()

    def test_the_cap_is_an_error_that_names_the_remedy(self, tmp_path):
        store = self.attempt(tmp_path)

        def fill():
            for start in range(0, 200_000, 1000):
                rows = customers(*range(start, start + 1000), name="w" * 100)
                store.append("customers", rows, keys_of(*[1] * 1000))

        with pytest.raises(MemoryLimitError, match='backend="lsm"'):
            fill()
        assert store.stats().memory_bytes <= self.memory_bytes
        # What was refused left no trace.
        assert len(scanned(store, "customers")) % 1000 == 0
        store.close()

    def test_space_of_deleted_rows_comes_back(self, tmp_path):
        store = self.attempt(tmp_path)
        for round_ in range(40):
            rows = customers(*range(1000), name="w" * 100)
            store.append("customers", rows, keys_of(*[round_ % 2] * 1000))
            store.delete("customers", keys_of(round_ % 2))
        store.append("customers", customers(5), keys_of(1))
        assert ids(scanned(store, "customers")) == [5]
        assert store.stats().memory_bytes < 200_000
        store.close()

    def test_many_small_batches_are_joined(self, tmp_path):
        store = self.attempt(tmp_path)
        for number in range(300):
            store.append("customers", customers(number), keys_of(number % 3))
        assert len(store._tables["customers"]._batches) < 70
        probe = store.probe("customers", keys_of(2))
        (piece,) = probe.fetch(memory_store.np.array([0]), 1 << 20)
        assert ids(piece.rows.to_pylist()) == list(range(2, 300, 3))
        store.close()


class TestRocksStore(StateStoreTests):
    backend = "rocksdb"

    def test_closing_removes_the_working_copy(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        assert len(list(tmp_path.glob("work-*"))) == 1
        pointer = store.commit()
        store.close()
        assert [path.name for path in tmp_path.iterdir()] == [pointer]

    def test_a_damaged_table_is_an_error(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(*range(5000)), keys_of(*range(5000)))
        pointer = store.commit()
        store.close()
        for table in (tmp_path / pointer).glob("*.sst"):
            data = bytearray(table.read_bytes())
            for at in range(0, len(data) // 2, 512):
                data[at] ^= 0xFF
            table.write_bytes(data)
        with pytest.raises((CorruptionError, OSError)):  # noqa: PT012
            store = self.attempt(tmp_path, pointer, 2)
            try:
                scanned(store, "customers")
            finally:
                store.close()

    def test_a_missing_table_is_an_error(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(*range(50)), keys_of(*range(50)))
        pointer = store.commit()
        store.close()
        next((tmp_path / pointer).glob("*.sst")).unlink()
        with pytest.raises((CorruptionError, OSError)):
            self.attempt(tmp_path, pointer, 2)
        assert list(tmp_path.glob("work-*")) == []

    def test_state_larger_than_the_cap(self, tmp_path):
        store = self.attempt(tmp_path)
        for start in range(0, 100_000, 5000):
            numbers = range(start, start + 5000)
            rows = customers(*numbers, name="w" * 150)
            store.append("customers", rows, keys_of(*[n % 20_000 for n in numbers]))
        assert (
            store.stats().memory["memtables"]
            <= 2 * Options(memory_bytes=self.memory_bytes).memtable_limit_bytes
        )
        probe = store.probe("customers", keys_of(3, 19_999))
        assert probe.counts.tolist() == [5, 5]
        assert store.stats().disk_bytes > 0
        store.close()


TestMemoryMachine = store_machine("memory", examples(40))
TestRocksMachine = store_machine("rocksdb", examples(10))


def test_an_unknown_backend_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(InvalidArgumentError, match="did you mean 'rocksdb'"):
        open_attempt(
            str(tmp_path), STREAMS, backend="rocks", batch_id=1, attempt_id="a", options=Options()
        )
    with pytest.raises(InvalidArgumentError, match="did you mean 'memory'"):
        open_store(str(tmp_path), STREAMS, backend="memry", options=Options())


def test_streams_must_differ(tmp_path):
    for streams in ((), (CUSTOMERS, CUSTOMERS), (StreamSchema("", KEY, CUSTOMERS.rows),)):
        with pytest.raises(InvalidArgumentError):
            open_store(str(tmp_path), streams, backend="memory", options=Options())


def test_a_refused_opening_releases_the_lock(tmp_path):
    store = open_store(str(tmp_path), STREAMS, backend="memory", options=Options())
    store.append("customers", customers(1), keys_of(1))
    store.commit()
    store.close()
    other = StreamSchema("customers", KEY, pa.schema([("id", pa.int64())]))
    for backend in ("memory", "memory"):
        with pytest.raises(InvalidArgumentError):
            open_store(str(tmp_path), (other,), backend=backend, options=Options())
    shutil.rmtree(tmp_path)


def test_several_writes_of_the_memory_backend_are_not_halved_by_a_full_disk(tmp_path, monkeypatch):
    row = pa.record_batch([pa.array([1], pa.int64())], names=["v"])
    streams = [StreamSchema(name, row.schema, row.schema) for name in ("a", "b")]
    store = open_store(str(tmp_path), streams, backend="memory", options=Options())
    write = memory_store.LogWriter.write

    def fails(log, change):
        if change.stream == "b":
            raise OSError(28, "No space left on device")
        write(log, change)

    monkeypatch.setattr(memory_store.LogWriter, "write", fails)
    with pytest.raises(OSError, match="No space left"):
        store.write([Mutation("append", name, row, row) for name in ("a", "b")])
    with pytest.raises(StoreClosedError, match="failed half-way"):
        store.commit()
    store.close()
    with open_store(str(tmp_path), streams, backend="memory", options=Options()) as store:
        assert list(store.scan("a")) == []


def test_the_cap_covers_all_memory_stores_of_the_process(tmp_path):
    memory_store._kept.clear()
    options = Options(memory_bytes=5 * MIB)
    stores = [
        open_attempt(
            str(tmp_path / str(number)),
            STREAMS,
            backend="memory",
            batch_id=1,
            attempt_id="a",
            options=options,
        )
        for number in range(3)
    ]
    rows = customers(*range(10_000), name="w" * 200)
    keys = keys_of(*[1] * 10_000)
    stores[0].append("customers", rows, keys)
    stores[1].append("customers", rows, keys)
    with pytest.raises(MemoryLimitError):
        stores[2].append("customers", rows, keys)
    stores[0].commit()
    stores[0].close()
    # A state kept from a closed store makes room.
    assert stores[2].append("customers", rows, keys) == 10_000
    for store in stores:
        store.close()


@pytest.mark.parametrize("backend", ["lsm", "rocksdb", "memory"])
def test_a_directory_may_be_any_path_but_a_file(tmp_path, backend):
    options = Options(memory_bytes=8 * MIB)
    with open_store(tmp_path / "store", STREAMS, backend=backend, options=options) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
    with open_store(str(tmp_path / "store"), STREAMS, backend=backend, options=options) as store:
        assert store.probe("customers", keys_of(1)).counts.tolist() == [1]
    attempt = {"backend": backend, "batch_id": 0, "attempt_id": "a", "options": options}
    with open_attempt(tmp_path / "bucket", STREAMS, **attempt) as store:
        pointer = store.commit()
    open_attempt(tmp_path / "bucket", STREAMS, pointer=pointer, **attempt).close()
    file = tmp_path / "file"
    file.write_text("")
    for bad, said in ((file, "is a file, not a dir"), (5, "give a path"), (b"x", "give a path")):
        with pytest.raises(InvalidArgumentError, match=said):
            open_store(bad, STREAMS, backend=backend, options=options)


def test_states_are_read_and_copied_by_any_path(tmp_path):
    options = Options(memory_bytes=8 * MIB)
    with open_store(tmp_path / "store", STREAMS, options=options) as store:
        store.append("customers", customers(1), keys_of(1))
        store.checkpoint("c")
    open_checkpoint(tmp_path / "store", "c", options=options).close()
    with pytest.raises(InvalidArgumentError, match="is not there; name the directory"):
        open_checkpoint(tmp_path / "none", "c", options=options)
    export(tmp_path / "store", tmp_path / "exported")
    restore(tmp_path / "exported", tmp_path / "restored")
    open_checkpoint(tmp_path / "store", "c", options=options).close()
    with open_attempt(
        tmp_path / "bucket", STREAMS, batch_id=0, attempt_id="a", options=options
    ) as store:
        pointer = store.commit()
    open_commit(tmp_path / "bucket", pointer, options=options).close()


def test_a_table_is_rebuilt_a_piece_of_rows_at_a_time(monkeypatch):
    """The rows of a key stay in the order in which they came, also where it has several pieces."""
    monkeypatch.setattr(memory_table, "REBUILT_BYTES", 200)
    schema = pa.schema([("n", pa.int64())])
    old = memory_table.MemoryTable(schema)
    keys = [b"a", b"b", b"c"]
    for first in range(0, 300, 3):
        rows = pa.record_batch([[first, first + 1, first + 2]], schema=schema)
        old.append(keys, np.ones(3, np.int64), rows)
    old.delete([b"b"])
    old.retract([b"a"], np.ones(1, np.int64), pa.record_batch([[0]], schema=schema))
    old.retract([b"d"], np.ones(1, np.int64), pa.record_batch([[7]], schema=schema))
    taken = []
    gather = memory_table.MemoryTable.rows

    def rows_of(table, numbers):
        taken.append(len(numbers))
        return gather(table, numbers)

    monkeypatch.setattr(memory_table.MemoryTable, "rows", rows_of)
    new = old.rebuilt()
    assert 0 < max(taken) <= 200 // 8
    assert new.sorted_keys() == [b"a", b"c"]
    counts, numbers = new.find(keys)
    assert counts.tolist() == [99, 0, 100]
    expected = [*range(3, 300, 3), *range(2, 300, 3)]
    assert new.rows(numbers).column(0).to_pylist() == expected
    assert [key for key, _ in new.pending()] == [b"d"]
