"""Who owns a standalone store: its lock, and the MANIFEST that says what counts."""

import dataclasses
import gc
import os
import signal

import pyarrow as pa
import pytest

from lsmstate.errors import (
    CorruptionError,
    InvalidArgumentError,
    StoreClosedError,
    StoreLockedError,
)
from lsmstate.store import StreamSchema
from support.changelog_cases import SMALL, all_ids, manifests, opened
from support.child_process import in_child
from support.faults import faults
from support.sample_streams import CUSTOMERS, RETURNS, customers, keys_of


def test_a_torn_first_or_later_manifest_does_not_count(tmp_path):
    """Also when the store is killed at it twice in a row."""
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        store.append("customers", customers(2), keys_of(2))
    for round in range(3):
        number = 1 + max(
            int(path.name.split("-")[1].split(".")[0])
            for path in tmp_path.iterdir()
            if "-" in path.name
        )
        (tmp_path / f"MANIFEST-{number:010d}").write_bytes(b"run-0000"[: 3 * round])
        assert all_ids(tmp_path) == [1, 2]


def test_killed_while_writing_the_first_manifest(tmp_path):
    for limit in [*range(12), *range(12)]:
        directory = tmp_path / str(limit)  # each twice: also over what the first time left

        def work(limit=limit, directory=directory):
            def kill(operation, path, offset, size):
                kill.seen += 1
                if kill.seen > limit:
                    os._exit(0)
                return

            kill.seen = 0
            with faults(kill):
                store = opened(directory)
                store.append("customers", customers(1), keys_of(1))
                store.commit()

        in_child(work)
    for limit in range(12):
        assert all_ids(tmp_path / str(limit)) in ([], [1], [1, 1])


def test_a_damaged_manifest_is_an_error_and_deletes_nothing(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
    (manifest,) = manifests(tmp_path)
    data = manifest.read_bytes()
    names = sorted(path.name for path in tmp_path.iterdir())
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 4
        manifest.write_bytes(wrong)
        with pytest.raises(CorruptionError):
            opened(tmp_path)
        manifest.write_bytes(data[:place])
        with pytest.raises(CorruptionError):
            opened(tmp_path)
    manifest.unlink()
    with pytest.raises(CorruptionError):
        opened(tmp_path)
    manifest.write_bytes(data)
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert all_ids(tmp_path) == [1]


def test_other_streams_are_refused_before_the_first_commit_too(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
    other = StreamSchema("customers", CUSTOMERS.key, pa.schema([("id", pa.int32())]))
    with pytest.raises(InvalidArgumentError, match="customers"):
        opened(tmp_path, streams=(other, RETURNS))
    assert all_ids(tmp_path) == [1]


def test_the_lock_is_given_up_by_an_open_that_fails(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
    (manifest,) = manifests(tmp_path)
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-3] + b"xyz")
    for _ in range(2):
        with pytest.raises(CorruptionError):
            opened(tmp_path)
    manifest.write_bytes(data)
    assert all_ids(tmp_path) == [1]


def test_the_lock_dies_with_its_process(tmp_path):
    ready, written = os.pipe()
    child = os.fork()
    if child == 0:
        store = opened(tmp_path)
        store.append("customers", customers(1), keys_of(1))
        os.write(written, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    with pytest.raises(StoreLockedError, match=str(child)):
        opened(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert all_ids(tmp_path) == [1]


def test_a_forked_child_neither_uses_nor_unlocks_the_store(tmp_path):
    store = opened(tmp_path)
    store.append("customers", customers(1), keys_of(1))

    def child():
        with pytest.raises(StoreClosedError):
            store.append("customers", customers(2), keys_of(2))
        store.close()
        with pytest.raises(StoreLockedError):
            opened(tmp_path)

    in_child(child)
    store.append("customers", customers(3), keys_of(3))
    in_child(child)
    store.close()
    assert all_ids(tmp_path) == [1, 3]


@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
def test_a_store_that_nobody_closed_and_nobody_holds_can_be_opened_again(tmp_path, background):
    store = opened(tmp_path, dataclasses.replace(SMALL, background=background))
    store.append("customers", customers(1), keys_of(1))
    store.flush()
    store.append("customers", customers(2), keys_of(2))
    del store
    with pytest.warns(ResourceWarning, match="never closed"):
        gc.collect()
    assert all_ids(tmp_path) == [1, 2]


def test_names_of_files_that_are_gone_are_forgotten(tmp_path):
    """The owner keeps in mind what is being written, and nothing for ever."""
    options = dataclasses.replace(SMALL, fanout=2, max_runs=2, background=False)
    with opened(tmp_path, options) as store:
        most = 0
        for start in range(0, 3000, 100):
            numbers = range(start, start + 100)
            store.append("customers", customers(*numbers, name="w" * 500), keys_of(*numbers))
            store.delete_range("customers", low=(start - 300,), high=(start,))
            store.flush()
            store.compact()
            most = max(most, len(store._owner._begun))
        store.commit()
        assert most <= 2
