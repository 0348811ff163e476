"""Exports and restores: every damage, and every failure on the way."""

import dataclasses
import errno
import json
import os
import shutil
from random import Random

import pytest

import lsmstate
import lsmstate.tools.export
from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from lsmstate.lsm.checksummed_text import seal_text
from lsmstate.lsm.store import LsmStore
from lsmstate.remote.directory import PIECE_BYTES
from lsmstate.tools.export_catalog import Catalog
from support.checkpoint_cases import OPTIONS, opened
from support.cli_cases import run
from support.crash_cases import BATCHES, found
from support.export_cases import catalogs, copied, filled, long_store, no_links, rows_of
from support.faults import Faults, faults
from support.flaky_filesystem import flaky
from support.power_cut import Disk
from support.sample_streams import STREAMS


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
    read = lsmstate.tools.export.list_each_export(tmp_path / "backup")
    assert [each.name for each in read] == ["good", "bad"]
    assert [type(each.said) for each in read] == [Catalog, CorruptionError]
    with pytest.raises(CorruptionError, match="bad"):
        lsmstate.list_exports(tmp_path / "backup")
    shown = run("exports", tmp_path / "backup", "--json")
    assert shown.exit_code == 1
    assert [each["name"] for each in json.loads(shown.stdout)] == ["good"]
    assert f"DAMAGED {path.name}" in shown.stderr
    # It keeps no other export from being made, and can be deleted itself.
    filled(tmp_path / "store", BATCHES[2:3])
    lsmstate.export(str(tmp_path / "store"), tmp_path / "backup", name="newest")
    shutil.copytree(tmp_path / "backup", tmp_path / "other")
    assert run("exports", tmp_path / "other", "--delete", "bad").exit_code == 0
    lsmstate.restore(tmp_path / "other", str(tmp_path / "three"))
    assert rows_of(tmp_path / "three") == list(range(360))
    assert lsmstate.delete_export(tmp_path / "other", "newest") > 0
    lsmstate.restore(tmp_path / "other", str(tmp_path / "one"))
    assert rows_of(tmp_path / "one") == list(range(120))
    path.write_bytes(data)
    lsmstate.delete_export(tmp_path / "backup", "newest")
    path.write_bytes(data[:-5])  # its export never ended
    assert [catalog.name for catalog in lsmstate.list_exports(tmp_path / "backup")] == ["good"]
    with pytest.raises(InvalidArgumentError, match="no complete export 'bad'"):
        lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"), name="bad")
    path.write_bytes(b"x" + data[1:])
    lsmstate.restore(tmp_path / "backup", str(tmp_path / "new"), name="good")
    assert rows_of(tmp_path / "new") == list(range(120))


def test_no_file_goes_while_a_catalog_cannot_be_read(tmp_path):
    backup = tmp_path / "backup"
    for number, name in enumerate(("one", "two", "three")):
        filled(tmp_path / "store", BATCHES[number : number + 1])
        if name == "three":
            with opened(tmp_path / "store") as store:
                store.compact()
        lsmstate.export(str(tmp_path / "store"), backup, name=name)
    for path in catalogs(backup)[:2]:
        path.write_bytes(b"x" + path.read_bytes()[1:])
    files = sorted(path.name for path in backup.glob("*.sst.*"))
    assert lsmstate.delete_export(backup, "one") == 0  # what "two" needs is not known
    assert sorted(path.name for path in backup.glob("*.sst.*")) == files
    freed = lsmstate.delete_export(backup, "two")
    (left,) = lsmstate.list_exports(backup)
    assert left.name == "three"
    assert freed == len(files) - len(left.files) > 0
    assert {path.name for path in backup.glob("*.sst.*")} == {each.stored for each in left.files}
    lsmstate.restore(backup, str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(360))


def test_an_older_export_is_not_taken_for_the_newest_in_silence(tmp_path):
    backup = tmp_path / "backup"
    for number, name in enumerate(("one", "two")):
        filled(tmp_path / "store", BATCHES[number : number + 1])
        lsmstate.export(str(tmp_path / "store"), backup, name=name)
    path = catalogs(backup)[-1]
    data = path.read_bytes()
    for wrong in (b"", data[:40], bytes(len(data)), data[:90] + bytes(len(data) - 90)):
        path.write_bytes(wrong)
        with pytest.raises(
            CorruptionError, match=rf"{path.name} at offset {len(wrong)}: .*complete: one\)"
        ):
            lsmstate.restore(backup, str(tmp_path / "new"))
        with pytest.raises(
            InvalidArgumentError, match=f"'two': {path.name} is incomplete"
        ) as caught:
            lsmstate.restore(backup, str(tmp_path / "new"), name="two")
        assert "did you mean" not in str(caught.value)
        assert [each.name for each in lsmstate.list_exports(backup)] == ["one"]
    lsmstate.restore(backup, str(tmp_path / "old"), name="one")
    assert rows_of(tmp_path / "old") == list(range(120))
    # The next export is newer than the one that is not whole, whose name it may have.
    lsmstate.export(str(tmp_path / "store"), backup, name="two")
    lsmstate.restore(backup, str(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == list(range(240))


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
    many = dataclasses.replace(OPTIONS, fanout=16, max_runs=32)  # files: none is merged
    with opened(tmp_path / "store", many) as store:
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
