"""Named checkpoints: what they share, what they keep, who may delete them, and every crash."""

import dataclasses
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from random import Random

import pytest

from lsmstate import open_checkpoint
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreClosedError
from lsmstate.lsm.checkpoints import Checkpoints
from lsmstate.lsm.file_names import parse_numbered
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import table_cache
from lsmstate.options import Options
from lsmstate.process.memory_budget import process_memory
from support.checkpoint_cases import OPTIONS, at, names, opened
from support.child_process import in_child
from support.crash_cases import BATCHES, found
from support.faults import Faults, faults, steps_done
from support.power_cut import Disk
from support.sample_streams import STREAMS, customers, keys_of
from support.sampling import some_or_every


def numbered_files(directory):
    return {name for name in os.listdir(directory) if parse_numbered(name)}


def test_several_checkpoints_keep_their_states(tmp_path):
    with opened(tmp_path) as store:
        for number, batch in enumerate(BATCHES):
            store.append("customers", *batch)
            store.checkpoint(f"after-{number}")
        store.delete("customers", keys_of(*range(50)))
        store.compact()
        store.commit()
        assert found(store) == []
        assert [each.name for each in store.checkpoints] == [f"after-{i}" for i in range(6)]
        for number in range(6):
            assert at(tmp_path, f"after-{number}") == list(range((number + 1) * 120))
    with opened(tmp_path) as store:
        assert len(store.checkpoints) == 6
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        for number in range(6):
            assert at(tmp_path, f"after-{number}") == list(range((number + 1) * 120))


def test_a_checkpoint_shares_the_runs_and_costs_new_bytes_only(tmp_path):
    with opened(tmp_path) as store:
        for batch in BATCHES:
            store.append("customers", *batch)
        store.commit()
        store.compact()
        first = store.checkpoint("first")
        before = numbered_files(tmp_path)
        store.append("customers", customers(9999), keys_of(1))
        second = store.checkpoint("second")
        new = numbered_files(tmp_path) - before
    assert len(second.files & first.files) >= len(second.files) - 1
    size = sum((tmp_path / name).stat().st_size for name in new)
    state = sum((tmp_path / name).stat().st_size for name in second.files)
    assert state > 15_000
    assert size < 2500


def test_deleting_one_deletes_what_only_it_needed(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("a")
        store.append("customers", *BATCHES[1])
        store.checkpoint("b")
        for batch in BATCHES[2:]:
            store.append("customers", *batch)
            store.commit()
        store.compact()
        store.commit()
        kept = {name: store.checkpoints[name].files for name in "ab"}
        store.checkpoints.delete("a")
        left = numbered_files(tmp_path)
        assert kept["b"] <= left
        assert not (kept["a"] - kept["b"]) & left
        assert at(tmp_path, "b") == list(range(240))
        store.checkpoints.delete("b")
        alone = numbered_files(tmp_path)
        store.append("customers", customers(9999), keys_of(1))
        store.commit()
        assert found(store) == [*range(720), 9999]
    assert names(tmp_path) == []
    live = alone & numbered_files(tmp_path)
    assert not kept["b"] & alone - live
    with opened(tmp_path) as store:
        assert found(store) == [*range(720), 9999]


def test_no_other_thread_commits_between_a_checkpoints_commit_and_its_name(tmp_path, monkeypatch):
    """Another store's thread flushes this one when memory is short; that commit would collect."""
    flushed = []

    def create(self, name, pointer):
        thread = threading.Thread(target=lambda: flushed.append(store.try_flush()))
        thread.start()
        thread.join()
        return original(self, name, pointer)

    original = Checkpoints.create
    monkeypatch.setattr(Checkpoints, "create", create)
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.checkpoint("a")
        assert flushed == [False]
        assert not store.try_flush()  # there is nothing left
        store.append("customers", customers(2), keys_of(1))
        assert store.try_flush()
    assert at(tmp_path, "a") == [1]


def test_names_are_checked_before_anything_changes(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        store.checkpoint("monday")
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(InvalidArgumentError, match="'monday' already; delete it first"):
            store.checkpoint("monday")
        for wrong in ("", "a/b", "a b", "x" * 129):
            with pytest.raises(InvalidArgumentError, match="1 to 128 letters"):
                store.checkpoint(wrong)
        with pytest.raises(InvalidArgumentError, match=r"no checkpoint 'munday'.*'monday'"):
            store.checkpoints.delete("munday")
        with pytest.raises(InvalidArgumentError, match=r"no checkpoint 'munday'.*'monday'"):
            at(tmp_path, "munday")
        assert sorted(os.listdir(tmp_path)) == before
        store.checkpoints.delete("monday")
        store.append("customers", customers(2), keys_of(1))
        store.checkpoint("monday")  # a name may be given again
    assert at(tmp_path, "monday") == [1, 2]


def test_an_attempt_has_no_checkpoints(tmp_path):
    with (
        LsmStore.open_attempt(
            str(tmp_path), STREAMS, batch_id=1, attempt_id="a", options=OPTIONS
        ) as store,
        pytest.raises(InvalidArgumentError, match="pointer"),
    ):
        store.checkpoint("monday")


def test_a_reader_writes_nothing_and_cannot_be_robbed(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("a")
        reader = open_checkpoint(str(tmp_path), "a", options=OPTIONS)
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(StoreClosedError, match="read-only, at checkpoint 'a'"):
            reader.append("customers", customers(1), keys_of(1))
        with pytest.raises(StoreClosedError, match="read-only"):
            reader.commit()
        with pytest.raises(StoreClosedError, match="read-only"):
            reader.checkpoint("b")
        with pytest.raises(InvalidArgumentError, match="open for reading; close its readers"):
            store.checkpoints.delete("a")
        assert sorted(os.listdir(tmp_path)) == before
        for batch in BATCHES[1:]:
            store.append("customers", *batch)
            store.commit()
        store.compact()
        assert found(reader) == list(range(120))
        reader.close()
        reader.close()
        store.checkpoints.delete("a")
        assert names(tmp_path) == []


def test_a_reader_in_another_process_holds_the_checkpoint_until_it_dies(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("a")
    ready, written = os.pipe()
    child = os.fork()
    if child == 0:
        reader = open_checkpoint(str(tmp_path), "a", options=OPTIONS)
        os.write(written, b"x")
        signal.pause()
        reader.close()
        os._exit(0)
    os.read(ready, 1)
    with opened(tmp_path) as store:
        with pytest.raises(InvalidArgumentError, match="open for reading"):
            store.checkpoints.delete("a")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store.checkpoints.delete("a")


def test_a_missing_run_is_named(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        checkpoint = store.checkpoint("a")
    gone = checkpoint.pointer.partition(":")[0]
    (tmp_path / gone).unlink()
    table_cache(process_memory()).forget(str(tmp_path), gone)
    with pytest.raises(CorruptionError, match=f"{gone}.*restore it from a copy"):
        at(tmp_path, "a")


def test_files_that_were_deleted_are_closed(tmp_path):
    """Their bytes would stay on the disk as long as this process kept them open."""
    with opened(tmp_path) as store:
        for batch in BATCHES:
            store.append("customers", *batch)
            store.checkpoint("a")
            found(store)
            store.checkpoints.delete("a")
        store.compact()
        found(store)
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in open_descriptors()]
    assert not [
        target for target in targets if str(tmp_path) in target and target.endswith("(deleted)")
    ]


def open_descriptors():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


#: What is done, in order: an append of batch n, a checkpoint or its deletion, a merge.
SCRIPT = [
    ("append", 0),
    ("checkpoint", "a"),
    ("append", 1),
    ("checkpoint", "b"),
    ("append", 2),
    ("delete", "a"),
    ("append", 3),
    ("compact", ""),
    ("checkpoint", "c"),
    ("delete", "b"),
    ("append", 4),
    ("checkpoint", "d"),
]


def do(store, step):
    what, which = step
    if what == "append":
        store.append("customers", *BATCHES[which])
    elif what == "checkpoint":
        store.checkpoint(which)
    elif what == "delete":
        store.checkpoints.delete(which)
    else:
        store.compact()


def expected(done):
    """(rows of the store, checkpoints with their rows) after so many steps."""
    appended, checkpoints = 0, {}
    for what, which in SCRIPT[:done]:
        if what == "append":
            appended += 120
        elif what == "checkpoint":
            checkpoints[which] = appended
        elif what == "delete":
            del checkpoints[which]
    return appended, checkpoints


def run(directory, hook, sync):
    options = dataclasses.replace(OPTIONS, sync=sync)
    return steps_done(hook, lambda: opened(directory, options), do, SCRIPT)


def check_after(directory, done):
    """One of the two states around the step that was cut, and nothing superfluous after the next
    commit."""
    before, after = expected(done), expected(min(done + 1, len(SCRIPT)))
    with opened(directory) as store:
        rows = found(store)
        store.check()
        assert len(rows) in (before[0], after[0])
        kept = {each.name: len(at(directory, each.name)) for each in store.checkpoints}
        assert kept in (before[1], after[1]), (done, kept)
        store.append("customers", customers(10_000), keys_of(999))
        store.compact()
        store.checkpoint("z")
        needed = set().union(*(each.files for each in store.checkpoints))
        needed |= {Path(each.path).name for each in store.checkpoints}
        superfluous = numbered_files(directory) - needed
        assert {parse_numbered(name)[0] for name in superfluous} == {"MANIFEST"}
    assert len(at(directory, "z")) == len(rows) + 1


@pytest.mark.parametrize("tear", [None, 0.5, 1.0])
@some_or_every
def test_an_error_at_any_operation(memory_path, tear, every):
    count = Faults()
    assert run(memory_path / "count", count, "never") == len(SCRIPT)
    for number in range(0, len(count.seen), 1 if every else 5):
        hook = Faults(number, tear=tear)
        done = run(memory_path / f"{number}", hook, "never")
        assert hook.failed == 1
        check_after(memory_path / f"{number}", done)
        shutil.rmtree(memory_path / f"{number}")


@some_or_every
def test_killed_at_any_operation(memory_path, every):
    count = Faults()
    run(memory_path / "count", count, "never")
    for number in range(1, len(count.seen), 1 if every else 11):
        directory = memory_path / f"{number}"
        report = memory_path / f"{number}.done"

        def work(number=number, directory=directory, report=report):
            def kill(operation, path, offset, size):
                if operation in ("create", "append", "sync", "rename", "remove"):
                    kill.seen += 1
                    if kill.seen > number:
                        os._exit(0)

            kill.seen = 0
            with faults(kill):
                store = opened(directory, dataclasses.replace(OPTIONS, sync="never"))
                for done, step in enumerate(SCRIPT):
                    report.write_text(json.dumps(done))
                    do(store, step)

        in_child(work)
        check_after(directory, json.loads(report.read_text()) if report.exists() else 0)
        shutil.rmtree(directory)


@some_or_every
def test_the_power_goes_at_any_operation(memory_path, every):
    count = Disk(memory_path / "count")
    assert run(memory_path / "count", count, "always") == len(SCRIPT)
    chance = Random(11)
    for cut in range(1, count.seen, 1 if every else 5):
        disk = Disk(memory_path / f"{cut}", cut_at=cut)
        done = run(memory_path / f"{cut}", disk, "always")
        disk.after_the_cut(memory_path / f"{cut}.left", chance)
        check_after(memory_path / f"{cut}.left", done)
        for path in memory_path.iterdir():
            if path.name != "count":
                shutil.rmtree(path)


def test_a_checkpoint_that_fails_leaves_a_store_that_goes_on(tmp_path):
    with opened(tmp_path, Options(memory_bytes=OPTIONS.memory_bytes, sync="commit")) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()  # so that the checkpoint has only its own file to write
        for number, operation in enumerate(("create", "append", "sync", "rename")):
            hook = Faults(0, operations=(operation,))
            with faults(hook), pytest.raises(OSError, match="injected"):
                store.checkpoint("a")
            assert names(tmp_path) == []
            assert list(store.checkpoints) == []
            store.append("customers", customers(2 + number), keys_of(1))
            store.commit()
        store.checkpoint("a")
    assert at(tmp_path, "a") == [1, 2, 3, 4, 5]
