"""The commands checkpoints, export, exports and restore."""

import json
import os
import subprocess
import sys

import pytest

from lsmstate import open_checkpoint
from lsmstate.errors import InvalidArgumentError, StoreLockedError
from lsmstate.lsm.store import LsmStore
from support.cli_cases import STREAM, rows, run
from support.inspected_states import OPTIONS
from support.inspected_states import standalone as standalone
from support.paths import ROOT


def parsed(*arguments):
    shown = run(*arguments, "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output)


def count(directory):
    with LsmStore.open(str(directory), [STREAM], options=OPTIONS) as store:
        return sum(piece.num_rows for piece in store.scan("people"))


def test_checkpoints_are_made_listed_and_deleted(standalone):
    assert parsed("checkpoints", standalone) == []
    (first,) = parsed("checkpoints", standalone, "--create", "one")
    assert first["name"] == "one"
    assert first["bytes"] > 1000
    assert "one" in run("checkpoints", standalone).output
    names = [each["name"] for each in parsed("checkpoints", standalone, "--create", "two")]
    assert names == ["one", "two"]
    (left,) = parsed("checkpoints", standalone, "--delete", "one")
    assert left["name"] == "two"
    with open_checkpoint(str(standalone), "two", options=OPTIONS) as store:
        assert sum(piece.num_rows for piece in store.scan("people")) == 500


def test_export_and_restore(standalone, tmp_path):
    done = parsed("export", standalone, tmp_path / "backup", "--name", "a")
    assert done["sent_files"] == done["files"] > 0
    again = run("export", standalone, tmp_path / "backup", "--name", "a")
    assert again.exit_code == 0
    assert "0 of 0 bytes sent" in again.output
    parsed("checkpoints", standalone, "--create", "c")
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
        store.append("people", *rows(7))
        parsed("export", standalone, f"file://{tmp_path}/backup", "--checkpoint", "c")
    assert [each["name"] for each in parsed("exports", tmp_path / "backup")] == ["a", "c"]
    restored = parsed("restore", tmp_path / "backup", tmp_path / "new", "--name", "a")
    assert restored["linked_files"] == restored["files"]
    assert count(tmp_path / "new") == 500
    assert "hard links" in run("restore", standalone, tmp_path / "from-checkpoint").output
    assert count(tmp_path / "from-checkpoint") == 500
    assert count(standalone) == 507
    assert [e["name"] for e in parsed("exports", tmp_path / "backup", "--delete", "a")] == ["c"]
    assert "c" in run("exports", tmp_path / "backup").output


def test_wrong_use_is_refused(standalone, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for arguments, error, message in (
        (("checkpoints", tmp_path / "empty"), InvalidArgumentError, "not a standalone"),
        (("checkpoints", standalone, "--delete", "x"), InvalidArgumentError, "no checkpoint 'x'"),
        (("export", tmp_path / "empty", tmp_path / "b"), InvalidArgumentError, "give the pointer"),
        (("restore", standalone, tmp_path / "full"), InvalidArgumentError, "not empty"),
    ):
        caught = run(*arguments).exception
        assert isinstance(caught, error)
        assert message in str(caught)
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS):
        caught = run("checkpoints", standalone, "--create", "x").exception
        assert isinstance(caught, StoreLockedError)


@pytest.mark.parametrize("arguments", [["exports", "/dev/null/x"], ["checkpoints", "/absent"]])
def test_errors_of_the_system_are_one_line(arguments):
    root = ROOT
    done = subprocess.run(
        [sys.executable, "-m", "lsmstate", *arguments, "--delete", "x"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("lsmstate: ")
    assert "Traceback" not in done.stderr
