"""The file of a checkpoint: whole from the moment it has its name, or an error."""

import dataclasses
import json
import os
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from lsmstate.cli.main import app
from lsmstate.cython_ext.base.compression import checksum
from lsmstate.errors import CorruptionError, FormatVersionError
from lsmstate.lsm.checksummed_text import seal_text, unseal_text
from lsmstate.opening import open_checkpoint
from lsmstate.tools.repair import repair
from support.checkpoint_cases import OPTIONS, at, names, opened
from support.crash_cases import found
from support.faults import Faults, faults
from support.sample_streams import customers, keys_of


def test_a_damaged_checkpoint_is_an_error_and_nothing_of_it_is_deleted(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        path = Path(store.checkpoint("a").path)
    data = path.read_bytes()
    chance = Random(1)
    for place in [*range(12), *chance.sample(range(len(data)), 40), *range(-18, 0)]:
        wrong = bytearray(data)
        wrong[place] ^= 1 << chance.randrange(7)
        path.write_bytes(wrong)
        with pytest.raises(CorruptionError, match=f"{path.name}.*copy"):
            opened(tmp_path)
    for text, error in (
        (b'{"format": 2}', FormatVersionError),
        (b'{"format": 1}', CorruptionError),
        (b"[]", CorruptionError),
        (b'{"format": 1, "name": "a", "pointer": "x", "files": []}', CorruptionError),
    ):
        path.write_bytes(text + b"\n" + f"{checksum(text):016x}\n".encode())
        with pytest.raises(error, match=path.name):
            opened(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for size in range(0, len(data), 7):
        for wrong in (data[:size], data[:size] + bytes(len(data) - size)):
            path.write_bytes(wrong)
            for read in (opened, names):
                with pytest.raises(CorruptionError, match=f"{path.name} at offset {size}.*delete"):
                    read(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before
    path.write_bytes(data)
    assert at(tmp_path, "a") == [1]


def test_a_checkpoint_is_forced_before_it_has_its_name(tmp_path):
    hook = Faults(operations=("create", "append", "sync", "rename"))
    with opened(tmp_path, dataclasses.replace(OPTIONS, sync="commit")) as store:
        store.append("customers", customers(1), keys_of(1))
        store.commit()
        with faults(hook):
            path = store.checkpoint("a").path
    temporary = f"{path}.unfinished"
    assert hook.seen == [
        ("create", temporary),
        ("append", temporary),
        ("sync", temporary),
        ("rename", path),
        ("sync", str(tmp_path)),
    ]


def test_what_a_crash_leaves_of_one_is_no_checkpoint_and_goes_at_the_next_opening(tmp_path):
    with opened(tmp_path) as store:
        store.append("customers", customers(1), keys_of(1))
        path = Path(store.checkpoint("a").path)
    left = path.with_name("CHECKPOINT-0000000099.unfinished")
    mine = tmp_path / "notes.unfinished"
    for data in (b"", path.read_bytes()[:30], path.read_bytes()):
        left.write_bytes(data)
        mine.write_bytes(data)
        assert names(tmp_path) == ["a"]
        with opened(tmp_path) as store:
            assert [each.name for each in store.checkpoints] == ["a"]
        assert not left.exists()
        assert mine.exists()


def test_a_checkpoint_that_names_files_elsewhere_is_damaged(tmp_path):
    """They would be deleted with it."""
    with opened(tmp_path / "store") as store:
        checkpoint = store.checkpoint("a")
    (tmp_path / "mine").write_text("precious")
    text = json.loads(unseal_text(Path(checkpoint.path).read_bytes(), checkpoint.path, ""))
    text["files"].append("../mine")
    Path(checkpoint.path).write_bytes(seal_text(json.dumps(text).encode()))
    with pytest.raises(CorruptionError, match=r"'\.\./mine'"):
        opened(tmp_path / "store")
    assert (tmp_path / "mine").read_text() == "precious"


def test_repair_names_those_it_does_not_take_over(tmp_path):
    with opened(tmp_path / "store") as store:
        store.append("customers", customers(1), keys_of(1))
        path = Path(store.checkpoint("monday").path)
    report = repair(str(tmp_path / "store"), str(tmp_path / "whole"))
    assert "checkpoint 'monday' is not copied; lsmstate restore" in report.problems[0]
    path.write_bytes(bytes(100))
    report = repair(str(tmp_path / "store"), str(tmp_path / "new"))
    assert "its name cannot be read" in report.problems[0]
    assert path.name in report.problems[0]
    assert (report.losses, report.rows) == ((), 1)
    with opened(tmp_path / "new") as store:
        assert found(store) == [1]
    assert path.read_bytes() == bytes(100)


def test_a_damaged_checkpoint_hides_no_other(tmp_path):
    directory = tmp_path / "store"
    with opened(directory) as store:
        for name in ("one", "two"):
            store.append("customers", customers(len(name)), keys_of(len(name)))
            store.checkpoint(name)
    first, _ = sorted(directory.glob("CHECKPOINT-*"))
    first.write_bytes(first.read_bytes()[:40])
    with open_checkpoint(str(directory), "two", options=OPTIONS) as read:
        assert read.stats().counters["rows"] > 0
    with pytest.raises(CorruptionError, match=first.name):
        open_checkpoint(str(directory), "one", options=OPTIONS)
    shown = CliRunner().invoke(app, ["checkpoints", str(directory), "--json"])
    assert shown.exit_code == 1
    assert [each["name"] for each in json.loads(shown.stdout)] == ["two"]
    assert f"DAMAGED {first.name}" in shown.stderr
