"""Exports and restores: what is sent, what is shared, and every damage and failure on the way."""

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from faults import Faults, faults
from flaky_filesystem import flaky
from power_cut import Disk
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from store_contract import STREAMS, customers, keys_of
from test_checkpoints import OPTIONS, opened
from test_crash import BATCHES, found
from typer.testing import CliRunner

import lsmstate
from lsmstate.cli import app
from lsmstate.durable_dir import PIECE_BYTES
from lsmstate.errors import (
    CorruptionError,
    FormatVersionError,
    InvalidArgumentError,
    StoreLockedError,
)
from lsmstate.lsm_store import LsmStore
from lsmstate.memory_budget import process_memory
from lsmstate.recovery import read_commit
from lsmstate.sealed_text import seal_text
from lsmstate.table_cache import table_cache


def filled(directory, batches=BATCHES):
    with opened(directory) as store:
        for batch in batches:
            store.append("customers", *batch)


def rows_of(directory):
    """The ids in a standalone store, which also goes on."""
    with opened(directory) as store:
        store.check()
        state = found(store)
        store.append("customers", customers(77_777), keys_of(999))
        store.commit()
    with opened(directory) as store:
        assert found(store) == [*state, 77_777]
    return state


def stored(place):
    return sorted(path.name for path in Path(place).iterdir() if path.name.startswith("run-"))


def catalogs(place):
    return sorted(path for path in Path(place).iterdir() if path.name.startswith("EXPORT-"))


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


def attempts(directory, number=4):
    pointers = []
    directory.mkdir()
    for batch in range(number):
        store = LsmStore.open_attempt(
            str(directory),
            STREAMS,
            pointer=pointers[-1] if pointers else None,
            batch_id=batch,
            attempt_id="a",
            options=OPTIONS,
        )
        with store:
            store.append("customers", *BATCHES[batch])
            pointers.append(store.commit())
    return pointers


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
            "of attempts",
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
        ("not empty", lambda: lsmstate.restore(tmp_path / "backup", str(full / "file"))),
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


def copied(place, target):
    """Files of their own: links would let damage reach the source."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(place, target)
    return target


def test_every_damage_of_an_export_is_found(tmp_path):
    filled(tmp_path / "store")
    lsmstate.export(str(tmp_path / "store"), tmp_path / "whole")
    chance = Random(5)
    for name in sorted(os.listdir(tmp_path / "whole")):
        data = (tmp_path / "whole" / name).read_bytes()
        for place in sorted({0, len(data) - 1, *chance.sample(range(len(data)), 12)}):
            backup = copied(tmp_path / "whole", tmp_path / "backup")
            wrong = bytearray(data)
            wrong[place] ^= 1 << chance.randrange(8)
            (backup / name).write_bytes(wrong)
            with pytest.raises((CorruptionError, FormatVersionError), match=name) as caught:
                lsmstate.restore(backup, str(tmp_path / "new"))
            assert caught.value.offset >= 0
            assert "another" in str(caught.value)
        if not name.startswith("EXPORT-"):
            for size in (0, 10, len(data) - 1):
                (backup / name).write_bytes(data[:size])
                with pytest.raises(CorruptionError, match=f"{name} at offset {size}"):
                    lsmstate.restore(backup, str(tmp_path / "new"))
            (backup / name).write_bytes(data + b"x")
            with pytest.raises(CorruptionError, match=name):
                lsmstate.restore(backup, str(tmp_path / "new"))
            (backup / name).unlink()
            with pytest.raises(CorruptionError, match=f"{name} at offset 0.*is missing"):
                lsmstate.restore(backup, str(tmp_path / "new"))
    assert sorted(os.listdir(tmp_path)) == ["backup", "store", "whole"]
    lsmstate.restore(tmp_path / "whole", str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(720))


def test_a_damaged_catalog_costs_that_export_only(tmp_path):
    filled(tmp_path / "store", BATCHES[:1])
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="good")
    filled(tmp_path / "store", BATCHES[1:2])
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="bad")
    path = catalogs(tmp_path / "backup")[-1]
    data = path.read_bytes()
    entry = json.loads(data.partition(b"\n")[0])
    for change, error in (
        ({"format": 2}, FormatVersionError),
        ({"piece_bytes": 5}, FormatVersionError),
        ({"files": 7}, CorruptionError),
        ({"files": [{**entry["files"][0], "file": "../x:5:0123456789abcdef"}]}, CorruptionError),
        ({"files": [{**entry["files"][0], "stored": "x"}]}, CorruptionError),
        ({"files": [{**entry["files"][0], "pieces": []}]}, CorruptionError),
        ({"files": entry["files"][1:]}, CorruptionError),
        ({"pointer": "x"}, CorruptionError),
    ):
        path.write_bytes(seal_text(json.dumps({**entry, **change}).encode()))
        with pytest.raises(error, match="bad"):
            lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    path.write_bytes(data[:-5])  # its export never ended
    assert [catalog.name for catalog in lsmstate.list_exports(tmp_path / "backup")] == ["good"]
    with pytest.raises(InvalidArgumentError, match="no complete export 'bad'"):
        lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"), name="bad")
    path.write_bytes(b"x" + data[1:])
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"), name="good")
    assert rows_of(tmp_path / "new") == list(range(120))


def test_a_damaged_source_is_not_exported(tmp_path):
    with opened(tmp_path / "store") as store:
        store.append("customers", *BATCHES[0])
        checkpoint = store.checkpoint("c")
    path = tmp_path / "store" / checkpoint.pointer.partition(":")[0]
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    for call in (
        lambda: lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", checkpoint="c"),
        lambda: lsmstate.restore(tmp_path / "store", str(tmp_path / "new"), name="c"),
    ):
        with pytest.raises(CorruptionError, match=path.name):
            call()
    assert lsmstate.list_exports(tmp_path / "backup") == []
    assert not (tmp_path / "new").exists()


def long_store(directory):
    """Files of several pieces."""
    options = lsmstate.Options(memory_bytes=16 << 20, compression="none", bottom_compression="none")
    with LsmStore.open(str(directory), STREAMS, options=options) as store:
        rows = customers(*range(4000), name="w" * 900)
        store.append("customers", rows, keys_of(*range(4000)))
        store.checkpoint("long")


def test_a_remote_file_system_that_reads_short_and_slowly(tmp_path):
    long_store(tmp_path / "store")
    filesystem, handler = flaky(tmp_path / "far", wait_seconds=0.002)
    done = lsmstate.export(
        str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint="long"
    )
    assert max(each.file.size for each in done.catalog.files) > 3 * PIECE_BYTES
    lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem)
    with LsmStore.open(
        str(tmp_path / "new"), STREAMS, options=lsmstate.Options(memory_bytes=16 << 20)
    ) as store:
        assert found(store) == list(range(4000))
    # The catalog is the last thing written.
    writes = [path for operation, path in handler.calls if operation == "close"]
    assert "EXPORT-" in writes[-1]
    assert not any("EXPORT-" in path for path in writes[:-1])


def test_the_offset_of_a_damaged_piece_is_named(tmp_path):
    long_store(tmp_path / "store")
    filesystem, _ = flaky(tmp_path / "far")
    done = lsmstate.export(
        str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint="long"
    )
    (path,) = [p for p in (tmp_path / "far" / "backup").iterdir() if p.stat().st_size > 1 << 20]
    data = bytearray(path.read_bytes())
    data[2 * PIECE_BYTES + 17] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem)
    assert caught.value.offset == 2 * PIECE_BYTES
    assert caught.value.path.endswith(f"flaky:backup/{path.name}")
    assert done.catalog.name == "long"


def test_an_export_that_fails_anywhere_leaves_the_earlier_ones_and_can_be_repeated(tmp_path):
    with opened(tmp_path / "store") as store:
        for number, batch in enumerate(BATCHES[:3]):
            store.append("customers", *batch)
            store.checkpoint(f"c{number}")
    source = str(tmp_path / "store")

    def exported(root, checkpoint, **how):
        filesystem, handler = flaky(root, **how)
        lsmstate.export(source, "backup", filesystem=filesystem, checkpoint=checkpoint)
        return handler

    exported(tmp_path / "first", "c0")
    count = exported(copied(tmp_path / "first", tmp_path / "count"), "c2")
    assert len(count.calls) > 12
    for failing in range(len(count.calls)):
        far = copied(tmp_path / "first", tmp_path / "far")
        with pytest.raises(OSError, match="injected"):
            exported(far, "c2", fail_at=failing)
        filesystem, _ = flaky(far)
        lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem, name="c0")
        assert rows_of(tmp_path / "new") == list(range(120))
        exported(far, "c2")
        shutil.rmtree(tmp_path / "new")
        lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem, name="c2")
        assert rows_of(tmp_path / "new") == list(range(360))
        shutil.rmtree(tmp_path / "new")


def test_an_upload_that_is_torn_in_silence_is_noticed_before_the_catalog(tmp_path):
    with opened(tmp_path / "store") as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("c")
    filesystem, _ = flaky(tmp_path / "far", torn=3)
    with pytest.raises(OSError, match=r"bytes that were sent .* arrived; export again"):
        lsmstate.export(str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint="c")
    assert catalogs(tmp_path / "far" / "backup") == []
    filesystem, _ = flaky(tmp_path / "far")
    done = lsmstate.export(str(tmp_path / "store"), "backup", filesystem=filesystem, checkpoint="c")
    assert done.sent_files == len(done.catalog.files)
    lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem)
    assert rows_of(tmp_path / "new") == list(range(120))


def test_a_file_that_an_unfinished_export_brought_is_used_if_its_bytes_are_right(tmp_path):
    with opened(tmp_path / "store") as store:
        store.append("customers", *BATCHES[0])
        store.checkpoint("c")
    source, filesystem = str(tmp_path / "store"), flaky(tmp_path / "far")[0]
    done = lsmstate.export(source, "backup", filesystem=filesystem, checkpoint="c")
    (catalog,) = catalogs(tmp_path / "far" / "backup")
    catalog.unlink()
    again = lsmstate.export(source, "backup", filesystem=filesystem, checkpoint="c")
    assert again.sent_files == 0
    catalog.unlink()
    for each in done.catalog.files:
        path = tmp_path / "far" / "backup" / each.stored
        data = bytearray(path.read_bytes())
        data[40] ^= 1  # of the right length, with the right footer
        path.write_bytes(data)
    again = lsmstate.export(source, "backup", filesystem=filesystem, checkpoint="c")
    assert again.sent_files == len(done.catalog.files)
    lsmstate.restore("backup", str(tmp_path / "new"), filesystem=filesystem)
    assert rows_of(tmp_path / "new") == list(range(120))


@pytest.mark.parametrize("tear", [None, 0.5])
def test_a_restore_that_fails_anywhere_leaves_nothing(tmp_path, monkeypatch, tear):
    filled(tmp_path / "store", BATCHES[:2])
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup")

    def other_device(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link", target)

    monkeypatch.setattr(os, "link", other_device)
    operations = ("create", "append", "sync", "open", "read")
    count = Faults(operations=operations)
    with faults(count):
        lsmstate.restore(tmp_path / "backup", str(tmp_path / "count"))
    shutil.rmtree(tmp_path / "count")
    # The last sync makes the name durable, after the rename.
    for failing in range(len(count.seen) - 1):
        hook = Faults(failing, tear=tear, operations=operations)
        with faults(hook), pytest.raises(OSError, match=r"injected|torn"):
            lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
        assert sorted(os.listdir(tmp_path)) == ["backup", "store"]
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(240))


def test_a_full_disk_at_the_destination(tmp_path, monkeypatch):
    filled(tmp_path / "store", BATCHES[:2])
    monkeypatch.setattr(os, "link", no_links)
    lsmstate.export(str(tmp_path / "store"), tmp_path / "first")
    hook = Faults(1, tear=0.5, more=10_000, operations=("append", "sync"))
    with faults(hook), pytest.raises(OSError, match=r"torn|injected"):
        lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="x")
    assert hook.failed > 0
    assert lsmstate.list_exports(tmp_path / "backup") == []
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="x")
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(240))


def test_a_power_cut_during_an_export_to_a_local_directory(tmp_path, monkeypatch):
    """A catalog that survives has all its files; one that was acknowledged survives."""
    filled(tmp_path / "store", BATCHES[:2])
    with opened(tmp_path / "store") as store:
        store.checkpoint("c")
    chance = Random(9)
    for copying in (False, True):
        if copying:
            monkeypatch.setattr(os, "link", no_links)
        backup, left, new = (tmp_path / f"{name}-{copying}" for name in ("backup", "left", "new"))
        cut = 0
        while True:
            cut += 1
            disk = Disk(backup, cut_at=cut)
            with faults(disk):
                try:
                    lsmstate.export(str(tmp_path / "store"), backup, checkpoint="c")
                    acknowledged = True
                except OSError:
                    acknowledged = False
            disk.after_the_cut(left, chance)
            survived = lsmstate.list_exports(left)
            assert survived or not acknowledged
            if survived:
                lsmstate.restore(left, str(new))
                assert rows_of(new) == list(range(240))
                shutil.rmtree(new)
            shutil.rmtree(left)
            shutil.rmtree(backup)
            if acknowledged:
                break
        assert cut > 8


def no_links(source, target):
    raise OSError(errno.EXDEV, "Invalid cross-device link", target)


def test_the_public_names():
    assert {"export", "restore", "list_exports", "delete_export"} <= set(lsmstate.__all__)
    assert callable(lsmstate.export)
    assert callable(lsmstate.restore)
