"""Commands that show several states, or one in part: what is damaged is named, and hides none."""

import json
import shutil

import pytest

from lsmstate.cython_ext.base.compression import checksum
from lsmstate.lsm.store import LsmStore
from support.cli_cases import STREAM, rows, run
from support.damaged_files import damage, spoil_footer
from support.inspected_states import OPTIONS, commit_again
from support.inspected_states import buckets as buckets
from support.inspected_states import standalone as standalone


def lines_of(shown):
    return [json.loads(line) for line in shown.output.splitlines()]


@pytest.mark.parametrize("command", ["inspect", "stats", "verify"])
@pytest.mark.parametrize("option", ["--json", None])
def test_one_bucket_that_cannot_be_read_hides_no_other(buckets, command, option):
    (path,) = (buckets / "bucket-0").glob("commit-*.sst")
    damage(path, "edit")
    shown = run(command, buckets, *([option] if option else []))
    assert shown.exit_code == 1
    assert path.name in shown.output
    assert "the edit block is damaged" in shown.output
    assert ("DAMAGED" in shown.output) == (option is None)
    (other,) = (buckets / "bucket-1").glob("commit-*.sst")
    assert other.name in shown.output or "11 rows" in shown.output


@pytest.mark.parametrize("kind", ["edit", "row"])
def test_rows_that_cannot_be_read_are_missing_and_those_of_other_buckets_are_dumped(buckets, kind):
    (path,) = (buckets / "bucket-0").glob("commit-*.sst")
    damage(path, kind)
    for place, left in ((buckets, 11), (buckets / "bucket-0", 0)):
        shown = run("dump", place, "people")
        assert shown.exit_code == 1
        assert len(shown.stdout.splitlines()) == left
        assert f"DAMAGED {path.name}" in shown.stderr


@pytest.fixture
def unopened(standalone):
    """A store of two runs of which this process has no file open; and its oldest file."""
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
        store.append("people", *rows(5))
        store.commit()
    copy = standalone.with_name("copy")
    shutil.copytree(standalone, copy)
    return copy, min(copy.glob("run-*.sst"))


def test_a_file_that_cannot_be_opened_is_named_on_the_terminal(unopened):
    store, path = unopened
    damage(path, "top")
    for arguments in ([], ["--json"]):
        shown = run("inspect", store, *arguments)
        assert shown.exit_code == 1
        assert "the top index block is damaged" in shown.output
    assert f"DAMAGED {path.name}: " in run("inspect", store).output


def test_a_file_of_a_later_format_is_named(unopened):
    """It is not damage, but neither can the file be read."""
    store, path = unopened
    of_later_format(path)
    for command in ("inspect", "verify"):
        shown = run(command, store)
        assert shown.exit_code == 1
        assert f"DAMAGED {path.name}: " in shown.output
        assert "this release reads up to" in shown.output


def of_later_format(path):
    """Give a file a format version this release does not know, under a right checksum."""
    data = bytearray(path.read_bytes())
    footer = len(data) - 80
    data[footer + 36] = 99
    sealed = checksum(bytes(data[footer : footer + 64]))
    data[footer + 64 : footer + 72] = sealed.to_bytes(8, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("command", ["inspect", "stats"])
def test_a_damaged_newest_commit_is_named(buckets, command):
    bucket = buckets / "bucket-0"
    path = commit_again(bucket)
    spoil_footer(path)
    shown = run(command, bucket)
    assert shown.exit_code == 1
    assert f"DAMAGED {path.name}: " in shown.output
    (found,) = lines_of(run(command, bucket, "--json"))
    assert [each["file"] for each in found["damaged"]] == [path.name]
    shown = run("dump", bucket, "people")
    assert shown.exit_code == 1
    assert len(shown.stdout.splitlines()) == 10
    assert f"DAMAGED {path.name}" in shown.stderr


@pytest.mark.parametrize("command", ["inspect", "stats"])
def test_a_commit_that_was_never_finished_is_no_damage(buckets, command):
    bucket = buckets / "bucket-0"
    path = commit_again(bucket)
    path.write_bytes(path.read_bytes()[:-1])
    shown = run(command, bucket)
    assert shown.exit_code == 0
    assert f"{path.name} was never finished" in shown.output
    (found,) = lines_of(run(command, bucket, "--json"))
    assert (found["damaged"], found["unsealed"]) == ([], [path.name])


def test_a_bucket_without_one_readable_commit_is_damaged(buckets):
    bucket = buckets / "bucket-0"
    (path,) = bucket.glob("commit-*.sst")
    spoil_footer(path)
    shown = run("inspect", bucket)
    assert shown.exit_code == 1
    assert "none of 1 commits can be read" in shown.output
    path.write_bytes(path.read_bytes()[:-1])
    assert run("inspect", buckets).exit_code == 0  # its first attempt died


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("inspect", "Print one JSON object per state."),
        ("stats", "Print one JSON object per state."),
        ("verify", "Print one JSON object per file."),
        ("dump", "Print one JSON object per row,"),
        ("checkpoints", "Print one JSON list of objects."),
        ("exports", "Print one JSON list of objects."),
        ("compact", "Print one JSON object."),
        ("repair", "Print one JSON object."),
        ("export", "Print one JSON object."),
        ("restore", "Print one JSON object."),
    ],
)
def test_the_help_says_what_json_is_printed(buckets, standalone, tmp_path, command, said):
    assert said in " ".join(run(command, "--help").output.replace("│", " ").split())
    run("export", standalone, tmp_path / "exported", "--name", "e")
    run("checkpoints", standalone, "--create", "c")
    arguments = {
        "dump": [buckets, "people", "--limit", 100],
        "checkpoints": [standalone],
        "exports": [tmp_path / "exported"],
        "compact": [standalone],
        "repair": [standalone, tmp_path / "new"],
        "export": [standalone, tmp_path / "other"],
        "restore": [tmp_path / "exported", tmp_path / "new"],
    }.get(command, [buckets])
    lines = lines_of(run(command, *arguments, "--json"))
    kind, count = {
        "inspect": (dict, 2),
        "stats": (dict, 2),
        "verify": (dict, 2),
        "dump": (dict, 21),
        "checkpoints": (list, 1),
        "exports": (list, 1),
    }.get(command, (dict, 1))
    assert [type(line) for line in lines] == [kind] * count
    if command in ("inspect", "stats", "verify"):
        assert [line["directory"] for line in lines] == [
            str(buckets / "bucket-0"),
            str(buckets / "bucket-1"),
        ]
