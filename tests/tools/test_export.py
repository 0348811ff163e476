"""Exports and restores: what is sent, what is shared, what is refused."""

import dataclasses
import errno
import json
import os

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from typer.testing import CliRunner

import lsmstate
from lsmstate.cli.main import app
from lsmstate.errors import CorruptionError, InvalidArgumentError, StoreLockedError
from lsmstate.lsm.recovery import read_commit
from lsmstate.lsm.store import LsmStore
from lsmstate.lsm.table_cache import table_cache
from lsmstate.process.memory_budget import process_memory
from support.checkpoint_cases import OPTIONS, opened
from support.cli_cases import run
from support.crash_cases import BATCHES, found
from support.export_cases import attempts, filled, rows_of, stored
from support.sample_streams import STREAMS, customers, keys_of


def test_a_closed_store_with_its_logged_writes_there_and_back(tmp_path):
    filled(tmp_path / "store")  # never committed: all is in the changelog
    done = lsmstate.export(str(tmp_path / "store"), tmp_path / "backup")
    assert done.sent_files == len(done.catalog.files) > 0
    assert done.sent_bytes == done.catalog.size
    restored = lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    assert restored.linked_files == restored.files == done.sent_files
    assert rows_of(tmp_path / "new") == list(range(720))
    assert rows_of(tmp_path / "store") == list(range(720))
    # Both went on from here, under equal names of files: their exports may stand side by side.
    first = lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="old")
    second = lsmstate.export(str(tmp_path / "new"), tmp_path / "backup", name="new")
    assert {f.file.name for f in first.catalog.files} & {f.file.name for f in second.catalog.files}
    for name in ("old", "new"):
        lsmstate.restore(tmp_path / "backup", str(tmp_path / f"again-{name}"), name=name)
        assert rows_of(tmp_path / f"again-{name}") == [*range(720), 77_777]


def test_local_files_are_linked_and_elsewhere_copied(tmp_path, monkeypatch):
    filled(tmp_path / "store")
    done = lsmstate.export(str(tmp_path / "store"), tmp_path / "backup")
    for each in done.catalog.files:
        original = tmp_path / "store" / each.file.name
        assert original.samefile(tmp_path / "backup" / each.stored)

    def other_device(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link", target)

    monkeypatch.setattr(os, "link", other_device)
    lsmstate.export(str(tmp_path / "store"), f"file://{tmp_path}/copy")
    for each in done.catalog.files:
        copy = tmp_path / "copy" / each.stored
        assert copy.read_bytes() == (tmp_path / "store" / each.file.name).read_bytes()
        assert copy.stat().st_nlink == 1
    restored = lsmstate.restore(tmp_path / "copy", str(tmp_path / "new"))
    assert restored.linked_files == 0
    assert rows_of(tmp_path / "new") == list(range(720))


def test_exports_are_incremental_and_deleted_safely(tmp_path):
    filesystem = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    sent = []
    with opened(tmp_path / "store") as store:
        for number, batch in enumerate(BATCHES):
            store.append("customers", *batch)
            if number == 1:
                store.compact()
            store.checkpoint(f"c{number}")
            done = lsmstate.export(
                str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint=f"c{number}"
            )
            sent.append(done.sent_files)
            assert done.catalog.name == f"c{number}"
            again = lsmstate.export(
                str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint=f"c{number}"
            )
            assert (again.sent_files, again.sent_bytes) == (0, 0)
            assert again.catalog == done.catalog
    assert max(sent) <= 2
    listed = lsmstate.list_exports("backup", filesystem=filesystem)
    assert [catalog.name for catalog in listed] == [f"c{n}" for n in range(6)]
    for name in ("c0", "c3", "c5"):
        before = len(stored(tmp_path / "backup"))
        gone = lsmstate.delete_export("backup", name, filesystem=filesystem)
        assert len(stored(tmp_path / "backup")) == before - gone
    for number in (1, 2, 4):
        target = str(tmp_path / f"new{number}")
        lsmstate.restore("backup", target, filesystem=filesystem, name=f"c{number}")
        assert rows_of(target) == list(range(120 * (number + 1)))
    for number in (1, 2, 4):
        lsmstate.delete_export("backup", f"c{number}", filesystem=filesystem)
    assert os.listdir(tmp_path / "backup") == []


def test_a_checkpoint_is_restored_as_a_new_directory(tmp_path):
    with opened(tmp_path / "store") as store:
        for number, batch in enumerate(BATCHES[:3]):
            store.append("customers", *batch)
            store.checkpoint(f"c{number}")
        # The store goes on meanwhile.
        lsmstate.restore(tmp_path / "store", str(tmp_path / "first"), name="c0")
        lsmstate.restore(tmp_path / "store", str(tmp_path / "newest"))
        store.append("customers", *BATCHES[3])
        store.checkpoints.delete("c0")
        store.compact()
    assert rows_of(tmp_path / "first") == list(range(120))
    assert rows_of(tmp_path / "newest") == list(range(360))
    assert rows_of(tmp_path / "store") == list(range(480))


@pytest.mark.parametrize("damage", ["gone", "torn", "wrong"])
def test_a_store_without_a_manifest_still_has_its_checkpoints(tmp_path, damage):
    with opened(tmp_path / "store") as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("c")
        store.append("customers", *BATCHES[1])
        store.commit()
    (manifest,) = (tmp_path / "store").glob("MANIFEST-*")
    data = manifest.read_bytes()
    if damage == "gone":
        manifest.unlink()
    else:
        manifest.write_bytes(data[:-3] if damage == "torn" else data[:-3] + b"xx\n")
    source = str(tmp_path / "store")
    with pytest.raises(CorruptionError, match="checkpoint"):
        opened(source)
    with pytest.raises(CorruptionError, match="checkpoint"):
        lsmstate.export(source, tmp_path / "backup")
    lsmstate.restore(source, str(tmp_path / "new"), name="c")
    assert rows_of(tmp_path / "new") == list(range(120))
    lsmstate.export(source, tmp_path / "backup", checkpoint="c")
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "again"))
    assert rows_of(tmp_path / "again") == list(range(120))
    shown = CliRunner().invoke(app, ["checkpoints", source, "--json"])
    assert [each["name"] for each in json.loads(shown.output)] == ["c"]


def test_an_attempts_state_at_a_pointer(tmp_path):
    pointers = attempts(tmp_path / "bucket")
    for number, pointer in enumerate(pointers):
        lsmstate.export(str(tmp_path / "bucket"), tmp_path / "backup", pointer=pointer)
        target = tmp_path / f"new{number}"
        restored = lsmstate.restore(tmp_path / "backup", str(target))
        assert restored.pointer == pointer
        store = LsmStore.open_attempt(
            str(target),
            STREAMS,
            pointer=restored.pointer,
            batch_id=number + 1,
            attempt_id="b",
            options=OPTIONS,
        )
        with store:
            store.check()
            assert found(store) == list(range(120 * (number + 1)))
            store.append("customers", customers(1), keys_of(1))
            store.commit()
    assert len(lsmstate.list_exports(tmp_path / "backup")) == 4
    with pytest.raises(InvalidArgumentError, match="backing is not a directory; give the place"):
        raise run("exports", tmp_path / "backing").exception


def test_a_manifest_that_builds_upon_a_base(tmp_path):
    """The base's commit travels too."""
    options = dataclasses.replace(OPTIONS, compression="none", bottom_compression="none")
    (tmp_path / "bucket").mkdir()
    pointer, count = None, 0
    for batch in range(7):
        rows = 5500 if batch == 0 else 20
        store = LsmStore.open_attempt(
            str(tmp_path / "bucket"),
            STREAMS,
            pointer=pointer,
            batch_id=batch,
            attempt_id="a",
            options=options,
        )
        with store:
            numbers = range(count, count + rows)
            store.append("customers", customers(*numbers, name="w" * 900), keys_of(*numbers))
            pointer = store.commit()
        count += rows
    commit = read_commit(table_cache(process_memory()), str(tmp_path / "bucket"), pointer)
    assert str(commit.base) != pointer
    lsmstate.export(str(tmp_path / "bucket"), tmp_path / "backup", pointer=pointer)
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    assert commit.base.name in os.listdir(tmp_path / "new")
    store = LsmStore.open_attempt(
        str(tmp_path / "new"), STREAMS, pointer=pointer, batch_id=9, attempt_id="b", options=options
    )
    with store:
        assert found(store) == list(range(count))


def test_what_is_asked_for_is_checked_first(tmp_path):
    filled(tmp_path / "store", BATCHES[:1])
    (pointer, _) = attempts(tmp_path / "bucket", 2)
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="monday")
    before = sorted(os.listdir(tmp_path / "backup"))
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_text("mine")
    wrong = [
        ("into itself", lambda: lsmstate.export(str(tmp_path / "store"), tmp_path / "store")),
        ("1 to 128", lambda: lsmstate.export(str(tmp_path / "store"), tmp_path / "b", name="a/b")),
        ("give the pointer", lambda: lsmstate.export(str(tmp_path / "bucket"), tmp_path / "b")),
        (
            "a commit of a bucket",
            lambda: lsmstate.export(str(tmp_path / "store"), tmp_path / "b", pointer=pointer),
        ),
        (
            "another state",
            lambda: lsmstate.export(
                str(tmp_path / "bucket"), tmp_path / "backup", pointer=pointer, name="monday"
            ),
        ),
        ("no checkpoint", lambda: lsmstate.restore(tmp_path / "store", str(tmp_path / "n"))),
        ("no export and no", lambda: lsmstate.restore(tmp_path / "bucket", str(tmp_path / "n"))),
        ("no export and no", lambda: lsmstate.restore(tmp_path / "absent", str(tmp_path / "n"))),
        (
            "'munday'; did you mean 'monday'",
            lambda: lsmstate.restore(tmp_path / "backup", str(tmp_path / "n"), name="munday"),
        ),
        ("not empty", lambda: lsmstate.restore(tmp_path / "backup", str(full))),
        ("is a file", lambda: lsmstate.restore(tmp_path / "backup", str(full / "file"))),
        ("no complete export", lambda: lsmstate.delete_export(tmp_path / "backup", "x")),
        ("bogus://", lambda: lsmstate.list_exports("bogus://bucket/x")),
    ]
    for message, call in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    assert sorted(os.listdir(tmp_path / "backup")) == before
    assert (full / "file").read_text() == "mine"
    assert not (tmp_path / "n").exists()
    assert not (tmp_path / "b").exists()
    with opened(tmp_path / "store"), pytest.raises(StoreLockedError, match="or export a checkpoin"):
        lsmstate.export(str(tmp_path / "store"), tmp_path / "b")


def test_an_empty_directory_may_be_restored_into(tmp_path):
    filled(tmp_path / "store", BATCHES[:1])
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup")
    (tmp_path / "new").mkdir()
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(120))


def test_the_public_names():
    assert {"export", "restore", "list_exports", "delete_export"} <= set(lsmstate.__all__)
    assert callable(lsmstate.export)
    assert callable(lsmstate.restore)
