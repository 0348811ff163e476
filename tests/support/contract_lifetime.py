"""The contract of a store over its life: snapshots, commits, reopening, closing."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import (
    InvalidArgumentError,
    LsmStateError,
    StoreClosedError,
    StoreLockedError,
)
from lsmstate.lsm.store import LsmStore
from lsmstate.opening import open_attempt
from lsmstate.options import MIB, Options
from lsmstate.store import StreamSchema
from support.contract_base import BackendTests
from support.paths import ROOT, TESTS
from support.sample_streams import (
    CUSTOMERS,
    KEY,
    RETURNS,
    STREAMS,
    customers,
    fetched,
    ids,
    iterated,
    keys_of,
    returns,
    scanned,
)


class LifetimeTests(BackendTests):
    def test_deletes_survive_a_commit(self, tmp_path):
        with_rows = self.attempt(tmp_path)
        with_rows.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        first = with_rows.commit()
        with_rows.close()
        store = self.attempt(tmp_path, first, 2)
        store.delete("customers", keys_of(1))
        store.append("customers", customers(9), keys_of(1))
        second = store.commit()
        store.close()
        store = self.attempt(tmp_path, second, 3)
        assert sorted(ids(scanned(store, "customers"))) == [2, 9]
        store.close()

    def test_a_snapshot_stays_as_it_was(self, store):
        store.append("customers", customers(1, 2, 3), keys_of(1, 2, 1))
        with store.snapshot() as snapshot:
            begun = snapshot.iterate("customers", max_bytes=1)
            next(begun)
            probe = snapshot.probe("customers", keys_of(1, 2, 3))
            assert list(snapshot.streams) == list(store.streams)
            store.append("customers", customers(4, 5, 6), keys_of(1, 3, 4))
            store.delete("customers", keys_of(2))
            store.put("customers", customers(7), keys_of(1))
            store.append("returns", returns(9), keys_of(1))
            with store.snapshot() as second:
                store.commit()
                assert ids(scanned(second, "customers")) == [7, 5, 6]
                assert ids(row for _, row in iterated(second, "returns")) == [9]
            # What was begun goes on, in any order with what begins now.
            assert ids(next(begun).rows.to_pylist()) == [3]
            assert probe.counts.tolist() == [2, 1, 0]
            found = fetched(probe, [0, 1])
            assert (ids(found[0]), ids(found[1])) == ([1, 3], [2])
            assert ids(next(begun).rows.to_pylist()) == [2]
            assert ids(scanned(snapshot, "customers")) == [1, 3, 2]
            back = iterated(snapshot, "customers", reverse=True)
            assert ids(row for _, row in back) == [2, 1, 3]
            assert snapshot.exists("customers", keys_of(2, 3)).tolist() == [True, False]
            assert ids(snapshot.get("customers", (1, "s1")).to_pylist()) == [1, 3]
            assert scanned(snapshot, "returns") == []
            assert snapshot.stats().counters["probed_keys"] > 0
        assert ids(scanned(store, "customers")) == [7, 5, 6]

    def test_snapshots_of_an_empty_and_of_a_committed_store(self, tmp_path):
        store = self.attempt(tmp_path)
        with store.snapshot() as snapshot:
            store.append("customers", customers(1), keys_of(1))
            pointer = store.commit()
            assert scanned(snapshot, "customers") == []
        with store.snapshot() as snapshot:
            assert ids(scanned(snapshot, "customers")) == [1]
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        with store.snapshot() as snapshot:
            store.append("customers", customers(2), keys_of(2))
            assert ids(scanned(snapshot, "customers")) == [1]
        store.close()

    def test_a_snapshot_ends_when_it_or_its_store_is_closed(self, tmp_path):
        store = self.owned(tmp_path)
        store.append("customers", customers(1, 2), keys_of(1, 2))
        closed, ended = store.snapshot(), store.snapshot()
        begun = closed.iterate("customers", max_bytes=1)
        probe = closed.probe("customers", keys_of(1))
        next(begun)
        closed.close()
        closed.close()
        assert ids(scanned(ended, "customers")) == [1, 2]
        store.commit()
        store.close()
        for call in (
            lambda: next(begun),
            lambda: list(probe.fetch(np.array([0]), 100)),
            lambda: closed.probe("customers", keys_of(1)),
            lambda: closed.scan("customers"),
            lambda: ended.iterate("customers"),
            ended.stats,
            store.snapshot,
        ):
            with pytest.raises(StoreClosedError, match="closed"):
                call()
        store = self.owned(tmp_path)
        assert ids(scanned(store, "customers")) == [1, 2]
        store.close()

    def test_a_read_keeps_a_snapshot_that_nobody_holds(self, store):
        store.append("customers", customers(1, 2), keys_of(1, 2))
        entries = store.snapshot().iterate("customers", max_bytes=1)
        pieces = store.snapshot().scan("customers", max_bytes=1)
        probe = store.snapshot().probe("customers", keys_of(1, 2))
        store.append("customers", customers(3), keys_of(1))
        with pytest.warns(ResourceWarning, match="never closed"):
            assert [ids(rows.to_pylist()) for _, rows in entries] == [[1], [2]]
        with pytest.warns(ResourceWarning, match="never closed"):
            assert [ids(rows.to_pylist()) for rows in pieces] == [[1], [2]]
        assert sorted(ids(row for rows in fetched(probe, [0, 1]).values() for row in rows)) == [
            1,
            2,
        ]
        with pytest.warns(ResourceWarning, match="never closed"):
            del entries, pieces, probe

    def test_a_snapshot_that_nobody_closed_is_closed_with_a_warning(self, store):
        store.append("customers", customers(1), keys_of(1))
        snapshot = store.snapshot()
        assert snapshot.exists("customers", keys_of(1)).tolist() == [True]
        with pytest.warns(ResourceWarning, match="never closed"):
            del snapshot

    def test_a_snapshot_inherited_over_a_fork_is_refused(self, store):
        store.append("customers", customers(1), keys_of(1))
        with store.snapshot() as snapshot:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    snapshot.probe("customers", keys_of(1))
                except StoreClosedError:
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_commit_and_reopen_at_the_pointer(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1, 2), keys_of(1, 2))
        store.append("returns", returns(7), keys_of(1))
        pointer = store.commit()
        # A committed attempt reads on, but writes no more.
        assert store.probe("customers", keys_of(1)).counts.tolist() == [1]
        with pytest.raises(StoreClosedError, match="new attempt"):
            store.append("customers", customers(3), keys_of(3))
        with pytest.raises(StoreClosedError, match="new attempt"):
            store.delete("customers", keys_of(1))
        store.close()
        assert len(pointer) < 256
        assert os.sep not in pointer
        store = self.attempt(tmp_path, pointer, 2)
        assert sorted(ids(scanned(store, "customers"))) == [1, 2]
        assert store.append("customers", customers(3), keys_of(1)) == 1
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 3]
        assert ids(scanned(store, "returns")) == [7]
        store.close()

    def test_the_first_attempt_of_a_bucket_makes_its_directory(self, tmp_path):
        """For whatever it writes first: a run, when memory is short, or its commit."""
        with self.attempt(tmp_path / "state" / "7") as store:
            store.append("customers", customers(1, 2), keys_of(1, 2))
            if isinstance(store, LsmStore):
                store.flush()
            pointer = store.commit()
        with self.attempt(tmp_path / "state" / "7", pointer, 2) as store:
            assert sorted(ids(scanned(store, "customers"))) == [1, 2]

    def test_an_old_pointer_still_opens_after_newer_commits(self, tmp_path):
        pointers = [None]
        for batch_id in range(1, 6):
            store = self.attempt(tmp_path, pointers[-1], batch_id)
            store.append("customers", customers(batch_id), keys_of(batch_id % 2))
            pointers.append(store.commit())
            store.close()
        assert len(set(pointers)) == 6
        for count in (5, 2, 0, 3, 3, 1):
            store = self.attempt(tmp_path, pointers[count], 9)
            assert sorted(ids(scanned(store, "customers"))) == list(range(1, count + 1))
            store.close()

    def test_two_attempts_from_one_pointer(self, tmp_path):
        base = self.attempt(tmp_path)
        base.append("customers", customers(1), keys_of(1))
        pointer = base.commit()
        base.close()
        # The same batch and even the same attempt: a zombie and its successor.
        stores = [self.attempt(tmp_path, pointer, 2, "a1") for _ in range(3)]
        for number, store in enumerate(stores):
            store.append("customers", customers(10 + number), keys_of(1))
        stores[2].close()
        results = [store.commit() for store in stores[:2]]
        for store in stores[:2]:
            store.close()
        assert results[0] != results[1]
        for number, result in enumerate(results):
            store = self.attempt(tmp_path, result, 3)
            assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 10 + number]
            store.close()

    def test_what_was_not_committed_is_given_up(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        store.append("customers", customers(2), keys_of(1))
        store.close()
        store = self.attempt(tmp_path, pointer, 2)
        assert ids(scanned(store, "customers")) == [1]
        store.close()

    def test_a_commit_in_another_process(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        command = [sys.executable, __file__, self.backend, str(tmp_path), pointer]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        store = self.attempt(tmp_path, done.stdout.strip(), 3)
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 2]
        store.close()

    def test_a_closed_store_says_so(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        probe = store.probe("customers", keys_of(1))
        store.close()
        store.close()
        for call in (
            lambda: store.append("customers", customers(1), keys_of(1)),
            lambda: store.probe("customers", keys_of(1)),
            lambda: store.delete("customers", keys_of(1)),
            lambda: store.put("customers", customers(1), keys_of(1)),
            lambda: store.write([]),
            lambda: store.delete_range("customers"),
            lambda: store.retract("customers", customers(1), keys_of(1)),
            lambda: store.exists("customers", keys_of(1)),
            lambda: store.get("customers", (1, "s1")),
            lambda: list(store.scan("customers")),
            lambda: list(store.iterate("customers")),
            lambda: list(probe.fetch(np.array([0]), 100)),
            store.commit,
            store.stats,
        ):
            with pytest.raises(StoreClosedError):
                call()

    def test_a_store_inherited_over_a_fork_is_refused(self, store):
        store.append("customers", customers(1), keys_of(1))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                store.probe("customers", keys_of(1))
            except StoreClosedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_another_schema_is_refused_when_opening(self, tmp_path):
        store = self.attempt(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        pointer = store.commit()
        store.close()
        other = StreamSchema("customers", KEY, pa.schema([("id", pa.int64())]))
        with pytest.raises(InvalidArgumentError, match="customers"):
            self.attempt(tmp_path, pointer, 2, streams=(other, RETURNS))
        with pytest.raises(InvalidArgumentError, match="returns"):
            self.attempt(tmp_path, pointer, 2, streams=(CUSTOMERS,))
        with pytest.raises(InvalidArgumentError, match="returns"):
            self.attempt(tmp_path, pointer, 2, streams=(RETURNS, CUSTOMERS))

    def test_more_streams_than_there_are_numbers_are_refused(self, tmp_path):
        streams = [StreamSchema(f"s{number}", KEY, KEY) for number in range(1 << 15)]
        with pytest.raises(
            InvalidArgumentError, match="32768 streams; a store holds at most 32767"
        ):
            self.attempt(tmp_path, streams=streams)

    def test_a_pointer_that_is_none_is_an_error(self, tmp_path):
        with pytest.raises((LsmStateError, OSError)):
            self.attempt(tmp_path, "nonsense")

    def test_stats_count_memory_and_disk(self, tmp_path):
        store = self.attempt(tmp_path)
        for start in range(0, 2000, 500):
            numbers = range(start, start + 500)
            store.append("customers", customers(*numbers, name="z" * 40), keys_of(*numbers))
        stats = store.stats()
        assert 0 < stats.memory_bytes <= self.memory_bytes
        assert stats.memory_bytes <= stats.peak_memory_bytes
        store.commit()
        assert store.stats().disk_bytes > 1000
        store.close()

    def test_a_store_of_one_process_finds_what_was_committed(self, tmp_path):
        store = self.owned(tmp_path)
        for batch in range(1, 4):
            store.append("customers", customers(batch), keys_of(1))
            store.commit()
        with pytest.raises(StoreLockedError):
            self.owned(tmp_path)
        store.close()
        store.close()
        store = self.owned(tmp_path)
        assert ids(fetched(store.probe("customers", keys_of(1)), [0])[0]) == [1, 2, 3]
        store.append("customers", customers(4), keys_of(1))
        store.commit()
        store.close()
        store = self.owned(tmp_path)
        assert ids(scanned(store, "customers")) == [1, 2, 3, 4]
        store.close()


def main() -> None:
    """What the other process of ``test_a_commit_in_another_process`` does."""
    backend, directory, pointer = sys.argv[1:]
    store = open_attempt(
        directory,
        STREAMS,
        backend=backend,
        pointer=pointer,
        batch_id=2,
        attempt_id="elsewhere",
        options=Options(memory_bytes=8 * MIB),
    )
    store.append("customers", customers(2), keys_of(1))
    print(store.commit())
    store.close()


if __name__ == "__main__":
    main()
