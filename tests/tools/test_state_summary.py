"""What inspect, stats and dump say of what is beside the runs, and while somebody commits."""

import json
import os
import subprocess
import sys

import pytest

from lsmstate.tools import rows as state_rows
from lsmstate.tools.inspection import find_states
from lsmstate.tools.rows import entries_of, with_open_files
from lsmstate.tools.summary import describe, summarize
from support.cli_cases import append, run
from support.upkeep_states import standalone as standalone
from support.verified_states import kept as kept
from support.verified_states import live_files, opened, state_files


def summary(directory):
    return json.loads(run("stats", directory, "--json").output)


def on_disk(directory, names=None):
    paths = directory.glob("*.sst") if names is None else [directory / name for name in names]
    return sum(path.stat().st_size for path in paths)


def test_what_the_commit_and_checkpoints_need_is_not_unneeded(kept):
    found = summary(kept)
    live = live_files(kept)
    only_kept = {path.name for path in kept.glob("run-*")} - live
    assert found["bytes"] == on_disk(kept, live)
    assert found["checkpoint_bytes"] == on_disk(kept, only_kept)
    assert (found["commit_bytes"], found["other_bytes"]) == (0, 0)
    with opened(kept) as store:
        store.delete_range("people", low=(5,), high=(7,))
        store.commit()
    found = summary(kept)
    (state,) = find_states(str(kept))
    assert found["commit_bytes"] == on_disk(kept, [state.pointer.split(":")[0]]) > 0
    assert found["other_bytes"] == 0
    (kept / "run-0000009999.sst").write_bytes(b"x" * 77)
    assert summary(kept)["other_bytes"] == 77
    shown = run("stats", kept).output
    assert f"files of checkpoints only {found['checkpoint_bytes']:,}, " in shown


def test_stats_name_a_damaged_checkpoint(kept):
    (path,) = kept.glob("CHECKPOINT-*")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert [each["file"] for each in summary(kept)["damaged"]] == [path.name]
    assert run("stats", kept).exit_code == 1


@pytest.mark.parametrize("command", ["inspect", "stats"])
def test_logged_writes_are_counted(standalone, command):
    assert json.loads(run(command, standalone, "--json").output)["logged_writes"] == 1
    shown = run(command, standalone)
    assert "note: 1 logged write is not shown" in shown.output
    run("compact", standalone)
    assert json.loads(run(command, standalone, "--json").output)["logged_writes"] == 0
    assert "logged write" not in run(command, standalone).output


def test_a_dump_says_which_writes_it_lacks(standalone):
    shown = run("dump", standalone, "people", "--limit", 10_000)
    assert len(shown.stdout.splitlines()) == 6000
    assert shown.stderr.startswith(f"{standalone}: note: 1 logged write is not shown")
    run("compact", standalone)
    shown = run("dump", standalone, "people", "--limit", 10_000)
    assert len(shown.stdout.splitlines()) == 6100
    assert shown.stderr == ""


def test_writes_that_are_in_the_runs_already_are_not_counted(tmp_path):
    """A changelog is deleted after the commit that makes it needless."""
    with opened(tmp_path, sync="never") as store:
        append(store, 0, 10)
        append(store, 10, 10)
        (log,) = tmp_path.glob("changelog-*")
        data = log.read_bytes()
        store.commit()
    log.write_bytes(data)
    assert summary(tmp_path)["logged_writes"] == 0


def test_a_damaged_changelog_is_named(standalone):
    with opened(standalone) as store:
        append(store, 7000, 10)
        append(store, 8000, 10)
    (log,) = standalone.glob("changelog-*")
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    for command in (["inspect"], ["stats"], ["dump", "people"]):
        shown = run(command[0], standalone, *command[1:])
        assert shown.exit_code == 1
        assert f"DAMAGED {log.name}: " in shown.output


@pytest.fixture
def replaced(kept):
    """A state whose files were replaced since it was found, and the store's directory."""
    (state,) = find_states(str(kept))
    with opened(kept) as store:
        append(store, 4000, 5000)
        store.commit()
        store.compact()
    assert not any((kept / name).exists() for name in state_files(state))
    return state, kept


def test_what_a_commit_replaced_is_not_shown_as_damaged(replaced):
    state, directory = replaced
    described = describe(state)
    assert (described["damaged"], described["rows"]) == ([], 9000)
    files = [file["name"] for each in described["runs"] for file in each["files"]]
    assert set(files) == live_files(directory)


def test_rows_are_read_of_the_state_that_took_its_place(replaced):
    state, directory = replaced
    opened_state = with_open_files(state)
    # Whose files another process deletes then: here they are open.
    code = (
        "import sys; from support.cli_cases import append\n"
        "from support.verified_states import opened\n"
        "with opened(sys.argv[1]) as store:\n"
        "    append(store, 9000, 20_000); store.commit(); store.compact()"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(directory)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert not any((directory / name).exists() for name in state_files(opened_state))
    assert sum(len(each.rows) for each in entries_of(opened_state, "people", 100_000)) == 9000


def test_a_changelog_that_a_commit_made_needless_meanwhile(standalone, monkeypatch):
    """Between the listing and the reading."""
    listed = state_rows.changelog_files
    names = listed(str(standalone))
    run("compact", standalone)
    assert not (standalone / names[0]).exists()
    answers = iter([names])
    monkeypatch.setattr(
        state_rows, "changelog_files", lambda directory: next(answers, None) or listed(directory)
    )
    (state,) = find_states(str(standalone))
    found = summarize(state)
    assert (found["logged_writes"], found["damaged"]) == (0, [])
