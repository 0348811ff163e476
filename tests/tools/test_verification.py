"""What verify reads of a state, and that another process may commit meanwhile."""

import json
import os
import shutil

import pytest

from lsmstate.errors import CorruptionError, FormatVersionError, LsmStateError, MemoryLimitError
from lsmstate.lsm.manifest import parse_pointer
from lsmstate.tools import concurrent_reader as state_watch
from lsmstate.tools import inspection
from lsmstate.tools import verify as verification
from lsmstate.tools.inspection import damage_of, find_states
from lsmstate.tools.verify import verify
from support.cli_cases import append, run
from support.damaged_files import spoil_footer
from support.inspected_states import buckets as buckets
from support.inspected_states import commit_again
from support.partial_merge_cases import Attempts
from support.partial_merge_cases import little_is_paid as little_is_paid
from support.verified_states import kept as kept
from support.verified_states import live_files, opened, state_files


def flip(path, place=40):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def verified(directory):
    """(exit status, status by file) of a process that has opened none of the files."""
    copy = directory.with_name(f"{directory.name}-{os.urandom(4).hex()}")
    shutil.copytree(directory, copy)
    shown = run("verify", copy, "--json")
    lines = [json.loads(line) for line in shown.output.splitlines()]
    assert {line["directory"] for line in lines} == {str(copy)}
    assert len({line["file"] for line in lines}) == len(lines)
    return shown.exit_code, {line["file"]: line["status"] for line in lines}


def damaged(directory):
    status, found = verified(directory)
    names = [name for name, said in found.items() if said == "damaged"]
    assert status == (1 if names else 0)
    return names


def test_files_that_only_a_checkpoint_needs_are_read(kept):
    status, found = verified(kept)
    assert (status, set(found.values())) == (0, {"ok"})
    runs = {path.name for path in kept.glob("run-*")}
    assert set(found) == runs | {path.name for path in kept.glob("CHECKPOINT-*")}
    only = sorted(runs - live_files(kept))
    assert len(only) >= 3
    flip(kept / only[0])
    assert damaged(kept) == [only[0]]
    (kept / only[1]).unlink()
    assert damaged(kept) == only[:2]


def test_a_checkpoint_itself_is_read(kept):
    (path,) = kept.glob("CHECKPOINT-*")
    whole = path.read_bytes()
    flip(path, 20)
    assert damaged(kept) == [path.name]
    path.write_bytes(whole[:-1])  # no crash leaves that under its name
    assert damaged(kept) == [path.name]


@pytest.mark.usefixtures("little_is_paid")
def test_files_of_a_merge_under_way_are_read(tmp_path):
    attempts = Attempts(tmp_path)
    merge = None
    while merge is None or not merge.files:
        attempts.batch()
        (state,) = find_states(str(tmp_path))
        merge = state.found.edit.merge
    assert not damaged(tmp_path)
    flip(tmp_path / merge.files[0].name)
    assert damaged(tmp_path) == [merge.files[0].name]


def test_a_commit_without_rows_is_read(tmp_path):
    store = tmp_path / "store"
    with opened(store) as opened_store:
        append(opened_store, 0, 100)
        opened_store.commit()
        opened_store.delete_range("people", low=(5,), high=(7,))
        opened_store.commit()
    (state,) = find_states(str(store))
    name = parse_pointer(state.pointer).name
    assert name not in live_files(store)
    status, found = verified(store)
    assert (status, found[name]) == (0, "ok")


@pytest.fixture
def logged(tmp_path):
    """A store whose logged writes lie in two changelogs."""
    store = tmp_path / "store"
    for start in (0, 5):
        with opened(store, sync="never") as opened_store:
            append(opened_store, start, 3)
            append(opened_store, start + 3, 2)
    assert len(list(store.glob("changelog-*"))) == 2
    return store


def test_a_changelog_that_is_gone_is_missed(logged):
    assert not damaged(logged)
    first, second = sorted(logged.glob("changelog-*"))
    first.unlink()
    assert damaged(logged) == [second.name]
    shown = run("verify", logged)
    assert "the writes 1 to 2 are in no write-ahead log before it; restore" in shown.output
    with pytest.raises(CorruptionError, match="write 1 is in no write-ahead log"), opened(logged):
        pass


def test_what_follows_a_damaged_changelog_is_not_blamed(logged):
    first, _ = sorted(logged.glob("changelog-*"))
    flip(first, 20)
    assert damaged(logged) == [first.name]


def test_newer_commits_that_were_passed_over(buckets):
    path = commit_again(buckets / "bucket-0")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    status, found = verified(path.parent)
    assert (status, found[path.name]) == (0, "unsealed")
    assert f"note: {path.name} was never finished" in run("verify", path.parent).output
    path.write_bytes(whole)
    spoil_footer(path)
    assert damaged(path.parent) == [path.name]
    assert f"DAMAGED {path.name}: " in run("verify", path.parent).output


def test_what_a_commit_replaced_meanwhile_is_not_missed(kept):
    (state,) = find_states(str(kept))
    with opened(kept) as store:
        append(store, 4000, 1000)
        store.commit()
        append(store, 5000, 1000)
        store.compact()
    assert not all((kept / name).exists() for name in state_files(state))
    found = list(verify(state))
    assert all(finding.damage is None for finding in found)
    assert live_files(kept) <= {finding.file for finding in found}


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_missed(kept):
    (state,) = find_states(str(kept))
    found = []
    for finding in verify(state):
        found.append(finding)
        if finding.file.startswith("CHECKPOINT"):
            with opened(kept) as store:
                store.checkpoints.delete("one")
    assert found
    assert all(finding.damage is None for finding in found)


def test_a_file_that_is_lost_is_missed_although_somebody_commits(kept):
    (state,) = find_states(str(kept))
    lost = state_files(state)[0]
    with opened(kept) as store:
        append(store, 4000, 10)
        store.commit()
        (kept / lost).unlink()
    assert lost in live_files(kept)
    assert [finding.file for finding in verify(state) if finding.damage is not None] == [lost]


def test_somebody_who_replaces_all_files_all_the_time_is_not_followed_for_ever(kept, monkeypatch):
    (state,) = find_states(str(kept))
    find = state_watch.find_state
    with opened(kept) as store:

        def replace_all(directory):
            found = find(directory)
            store.delete_range("people")
            append(store, 0, 100)
            store.commit()
            store.compact()
            return found

        replace_all(str(kept))
        monkeypatch.setattr(state_watch, "find_state", replace_all)
        with pytest.raises(LsmStateError, match="20 times a commit replaced files"):
            list(verify(state))


def test_the_commit_that_counts_is_found_although_it_is_replaced_meanwhile(kept, monkeypatch):
    read = inspection.read_commit
    turns = [1, 2, 3]
    with opened(kept) as store:

        def replaced_before(tables, directory, pointer):
            if turns:
                turns.pop()
                store.delete_range("people")
                append(store, 0, 100)
                store.commit()
                store.compact()
            return read(tables, directory, pointer)

        monkeypatch.setattr(inspection, "read_commit", replaced_before)
        (state,) = find_states(str(kept))
    assert not turns
    assert {file.name for file in state.found.edit.files} <= set(os.listdir(kept))


def test_a_manifest_that_comes_while_the_directory_is_listed(kept, monkeypatch):
    """A listing may have neither the new one nor the one that it replaced."""
    newest = inspection.newest_manifest
    answers = iter([(None, [])])
    monkeypatch.setattr(
        inspection, "newest_manifest", lambda directory: next(answers, None) or newest(directory)
    )
    (state,) = find_states(str(kept))
    assert state.pointer == newest(str(kept))[0].pointer


def test_that_memory_is_short_is_no_damage(kept, monkeypatch):
    def refuse(*_):
        raise MemoryLimitError("no room")

    monkeypatch.setattr(verification.sst_check, "verify", refuse)
    assert isinstance(run("verify", kept).exception, MemoryLimitError)


def test_every_message_says_what_to_do():
    short = CorruptionError("9 bytes were expected here, the file has 3", "/restored/run-1.sst", 0)
    assert damage_of(short).what.endswith("save the readable part with `lsmstate repair`")
    assert damage_of(short).file == "run-1.sst"
    told = CorruptionError("the row block is damaged; restore the file from a copy", "/x/a", 0)
    assert damage_of(told).what == str(told)
    later = FormatVersionError("open it with the release that wrote it or a later one")
    assert damage_of(later).what == str(later)
