"""Closing a store seals its logs: what is missing of them afterwards was not lost by a crash."""

import dataclasses
import json
import logging
import os
import random
import shutil

import pytest
from typer.testing import CliRunner

from lsmstate.cli.main import app
from lsmstate.errors import CorruptionError, StoreLockedError
from lsmstate.lsm.manifest_files import newest_manifest
from lsmstate.tools.repair import repair
from support.changelog_cases import SMALL, all_ids, killed, logs, manifests, opened
from support.child_process import in_child
from support.faults import Faults, faults
from support.power_cut import Disk
from support.sample_streams import customers, keys_of

SYNCS = {sync: dataclasses.replace(SMALL, sync=sync) for sync in ("always", "commit", "never")}


def closed(directory, options, *sizes, first=0):
    with opened(directory, options) as store:
        for number, size in enumerate(sizes, first):
            store.append("customers", customers(number, name="w" * size), keys_of(number))
    return logs(directory)[-1]


def cut(data, log):
    """What may become of a closed log: its bytes, or None for one that is gone."""
    yield from (data[:size] for size in range(len(data)))
    for sector_bytes in (512, 4096):
        for start in range(0, len(data), sector_bytes):
            end = min(start + sector_bytes, len(data))
            yield data[:start] + bytes(end - start) + data[end:]
    yield bytes(len(data))
    yield data[:-1] + b"\0"
    yield None


def replaced(log, data):
    if data is None:
        log.unlink()
    else:
        log.write_bytes(data)


@pytest.mark.parametrize("sync", SYNCS)
def test_what_is_cut_off_after_closing_is_missed(memory_path, sync):
    log = closed(memory_path / "store", SYNCS[sync], 20, 700, 30)
    data = log.read_bytes()
    names = set(os.listdir(memory_path / "store"))
    for number, left in enumerate(cut(data, log)):
        if left is not None and number % 7 and len(left) < len(data) - 40:
            continue
        replaced(log, left)
        for each in (sync, "commit"):  # it is missed each time, by whoever opens the store
            with pytest.raises(
                CorruptionError, match=r"end before write 3|changelog-\d+ at"
            ) as error:
                opened(memory_path / "store", SYNCS[each])
            assert "repair" in str(error.value)
        gone = {log.name} if left is None else set()
        assert set(os.listdir(memory_path / "store")) == names - gone
    log.write_bytes(data)
    assert all_ids(memory_path / "store") == [0, 1, 2]
    assert all_ids(memory_path / "store") == [0, 1, 2]


@pytest.mark.parametrize("sync", ["always", "commit"])
def test_a_power_cut_after_closing_loses_no_write(memory_path, sync):
    """The MANIFEST that seals the log is not forced. With it or without it the store opens."""
    disk = Disk(memory_path / "store")
    with faults(disk):
        closed(memory_path / "store", SYNCS[sync], 20, 700, 30)
    chance = random.Random(2)
    sealed = set()
    for number in range(40):
        left = memory_path / f"left-{number}"
        disk.after_the_cut(left, chance)
        sealed.add(newest_manifest(str(left))[0].logged)
        assert all_ids(left, options=SYNCS[sync]) == [0, 1, 2]
        shutil.rmtree(left)
    assert sealed == {0, 3}


def test_the_error_says_where_the_log_ends_now(tmp_path):
    log = closed(tmp_path / "store", SYNCS["always"], 20, 30)
    data = log.read_bytes()
    log.write_bytes(data[:-1])
    place = len(data) // 2
    with pytest.raises(
        CorruptionError, match=f"{log.name} at offset [0-9]+: .*before write 2,"
    ) as e:
        opened(tmp_path / "store")
    assert place - 20 < e.value.offset < place + 20
    log.unlink()
    with pytest.raises(CorruptionError, match=r"store at offset 0: .*end before write 2, which"):
        opened(tmp_path / "store")


def test_several_closed_logs(memory_path):
    """Of a store that forces nothing, whose logs stay until a commit."""
    for first in range(4):
        closed(memory_path / "store", SYNCS["never"], 20, 3000, first=2 * first)
    assert len(logs(memory_path / "store")) == 4
    assert len(manifests(memory_path / "store")) == 2  # of the commit and of the last close
    for log in logs(memory_path / "store"):
        data = log.read_bytes()
        for left in (
            None,
            b"",
            data[:-1],
            data[:1024] + bytes(512) + data[1536:],
            bytes(512) + data[512:],
        ):
            replaced(log, left)
            with pytest.raises(CorruptionError):
                opened(memory_path / "store", SYNCS["never"])
        log.write_bytes(data)
    assert all_ids(memory_path / "store", options=SYNCS["never"]) == list(range(8))
    assert all_ids(memory_path / "store") == list(range(8))
    assert logs(memory_path / "store") == []


@pytest.mark.parametrize("sync", SYNCS)
def test_what_a_crash_leaves_behind_a_sealed_log_is_torn(memory_path, sync):
    closed(memory_path / "store", SYNCS["never"], 20, 30)
    with opened(memory_path / "store", SYNCS[sync]) as store:
        store.append("customers", customers(2), keys_of(2))
        (log,) = logs(memory_path / "store")[-1:]
        end = log.stat().st_size
        store.append("customers", customers(3), keys_of(3))
        killed(memory_path / "store", memory_path / "left")
    log = memory_path / "left" / log.name
    data = log.read_bytes()
    for size in range(end, len(data)):
        shutil.rmtree(memory_path / "copy", ignore_errors=True)
        shutil.copytree(memory_path / "left", memory_path / "copy")
        (memory_path / "copy" / log.name).write_bytes(data[:size])
        assert all_ids(memory_path / "copy", options=SYNCS["never"]) == [0, 1, 2]


def test_a_log_of_a_crash_is_sealed_by_the_next_close(memory_path):
    """Of a store that forces nothing: nobody commits when it is opened."""
    with opened(memory_path / "store", SYNCS["never"]) as store:
        store.append("customers", customers(0), keys_of(0))
        store.append("customers", customers(1), keys_of(1))
        killed(memory_path / "store", memory_path / "left")
    assert all_ids(memory_path / "left", options=SYNCS["never"]) == [0, 1]
    (log,) = logs(memory_path / "left")
    data = log.read_bytes()
    for left in (data[:-1], b"", None):
        replaced(log, left)
        with pytest.raises(CorruptionError, match=r"end before write 2|at offset"):
            opened(memory_path / "left", SYNCS["never"])
    log.write_bytes(data)
    assert all_ids(memory_path / "left", options=SYNCS["never"]) == [0, 1]
    assert len(manifests(memory_path / "left")) == 2  # an open that adds nothing adds no other one


def test_a_commit_says_what_the_logs_beside_it_hold(memory_path):
    """Half of the last write is in the runs and the rest in a log that is closed by then."""
    alive = memory_path / "alive"
    with opened(alive, dataclasses.replace(SMALL, background=False)) as store:
        rows = customers(*range(900), name="w" * 1000)
        store.append("customers", rows, keys_of(*range(900)))
        killed(alive, memory_path / "store")
    (log,) = logs(memory_path / "store")
    data = log.read_bytes()
    for left in (None, b"", data[:-1], data[:2000]):
        replaced(log, left)
        with pytest.raises(CorruptionError):
            opened(memory_path / "store")
    log.write_bytes(data)
    assert all_ids(memory_path / "store") == list(range(900))


def test_logs_that_a_commit_made_needless_may_go(tmp_path):
    with opened(tmp_path, SYNCS["never"]) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        assert manifests(tmp_path)[0].read_bytes().count(b" ") == 0  # earlier releases read it
    with opened(tmp_path, SYNCS["never"]) as store:
        store.append("customers", customers(2), keys_of(2))
    with opened(tmp_path, SYNCS["never"]) as store:
        store.commit()
        assert manifests(tmp_path)[0].read_bytes().count(b" ") == 0
        assert logs(tmp_path) == []
    assert all_ids(tmp_path) == [1, 2]


def test_a_log_that_was_never_written_to_is_not_sealed(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        with faults(Faults(1, operations=("append",))), pytest.raises(OSError, match="injected"):
            store.append("customers", customers(2), keys_of(2))
    assert len(logs(tmp_path)) == 1
    assert all_ids(tmp_path) == [1]


@pytest.mark.parametrize("tear", [None, 0.5])
@pytest.mark.parametrize("sync", SYNCS)
def test_an_append_that_failed_is_torn_and_the_ones_before_are_sealed(memory_path, sync, tear):
    store = opened(memory_path / "store", SYNCS[sync])
    store.append("customers", customers(1), keys_of(1))
    hook = Faults(0, tear=tear, operations=("append",))
    with faults(hook), pytest.raises(OSError, match="injected"):
        store.append("customers", customers(2), keys_of(2))
    (log,) = logs(memory_path / "store")
    store.close()
    data = log.read_bytes()
    shutil.copytree(memory_path / "store", memory_path / "copy")
    assert all_ids(memory_path / "copy") == [1]
    log.write_bytes(data[:60])
    with pytest.raises(CorruptionError, match="end before write 1"):
        opened(memory_path / "store")


@pytest.mark.parametrize("sync", SYNCS)
def test_a_seal_that_cannot_be_written_is_no_error(memory_path, sync, caplog):
    """All that was acknowledged is in the log; it reads as after a crash."""
    for failing in range(8):
        directory = memory_path / str(failing)
        store = opened(directory, SYNCS[sync])
        store.append("customers", customers(1), keys_of(1))
        hook = Faults(failing)
        caplog.clear()
        with faults(hook), caplog.at_level(logging.WARNING, "lsmstate"):
            store.close()
        assert ("a missing end would not be noticed" in caplog.text) == bool(hook.failed)
        assert all_ids(directory) == [1]
    assert not hook.failed


def test_who_lost_the_directory_seals_nothing(tmp_path):
    store = opened(tmp_path, SYNCS["never"])
    store.append("customers", customers(1), keys_of(1))
    shutil.copyfile(tmp_path / "LOCK", os.devnull)  # drops the lock, as any copy does

    def other():
        with opened(tmp_path, SYNCS["never"]) as theirs:
            theirs.append("customers", customers(2), keys_of(2))

    in_child(other)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    store.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert all_ids(tmp_path) == [1, 2]


def test_a_forked_child_seals_nothing(tmp_path):
    store = opened(tmp_path)
    store.append("customers", customers(1), keys_of(1))
    names = sorted(os.listdir(tmp_path))
    in_child(store.close)
    assert sorted(os.listdir(tmp_path)) == names
    store.append("customers", customers(2), keys_of(2))
    store.close()
    assert all_ids(tmp_path) == [1, 2]
    with pytest.raises(StoreLockedError), opened(tmp_path):
        opened(tmp_path)


def shown(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("what", ["cut", "gone", "sector"])
def test_the_tools_say_it_too(tmp_path, what):
    log = closed(tmp_path / "store", SYNCS["commit"], 20, 3000, 30)
    data = log.read_bytes()
    holed = data[:1024] + bytes(512) + data[1536:]
    replaced(log, {"cut": data[:-1], "gone": None, "sector": holed}[what])
    status, found = shown("verify", tmp_path / "store")
    assert status != 0
    (damaged,) = [each for each in found if each["status"] == "damaged"]
    assert damaged["file"] == (log.name if what != "gone" else "changelog")
    assert "end before write 3" in damaged["found"]
    report = repair(str(tmp_path / "store"), str(tmp_path / "new"))
    kept = {"cut": [0, 1], "gone": [], "sector": [0, 2]}[what]
    assert report.logged_writes == len(kept)
    assert report.losses
    assert all_ids(tmp_path / "new", options=SYNCS["never"]) == kept
    for log in logs(tmp_path / "new"):  # what was repaired is sealed as what was closed
        log.write_bytes(log.read_bytes()[:-1])
        with pytest.raises(CorruptionError, match="end before write"):
            opened(tmp_path / "new")
