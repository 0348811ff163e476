"""Every command that looks at a state, on damaged, empty and missing ones: JSON or one sentence."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.store import StreamSchema
from lsmstate.tools.inspection import find_states
from support.cli_cases import STREAM, append, refused
from support.cli_cases import run_program as run
from support.damaged_files import damage
from support.resealing import Damage
from support.sampling import each_value
from support.upkeep_states import OPTIONS
from support.upkeep_states import bucket as bucket
from support.upkeep_states import standalone as standalone

COMMANDS = ("inspect", "verify", "dump", "compact", "stats", "repair", "checkpoints", "export")


def arguments_of(command, directory, target):
    more = {"dump": ["people"], "repair": [target], "export": [target]}.get(command, [])
    return [command, str(directory), *map(str, more), "--json"]


def named(status, errors):
    """Whether damage is named on the standard error."""
    return status == 1 and any(line.startswith("DAMAGED ") for line in errors.splitlines())


@each_value(command=COMMANDS, what=["missing", "empty", "a file", "other files"])
def test_what_is_no_state_is_refused_in_one_sentence(monkeypatch, capsys, tmp_path, command, what):
    place = tmp_path / "place"
    if what != "missing":
        place.mkdir()
    if what == "a file":
        place = place / "file"
        place.write_bytes(b"text")
    if what == "other files":
        (place / "notes.txt").write_text("text")
        (place / "run-0000000001.sst").write_bytes(b"LSMSTATE")
    before = sorted(tmp_path.rglob("*"))
    found = run(monkeypatch, capsys, *arguments_of(command, place, tmp_path / "new"))
    assert refused(*found), found
    assert str(place) in found[2]
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "new"] == before


@each_value(
    times=2,
    what=[
        "row",
        "key",
        "index",
        "filter",
        "top",
        "edit",
        "footer",
        "gone",
        "MANIFEST",
        "changelog",
    ],
    command=COMMANDS,
)
def test_damaged_stores_give_json_or_one_sentence(
    monkeypatch, capsys, tmp_path, standalone, command, what
):
    newest = max(standalone.glob("run-*.sst"))
    if what == "gone":
        min(standalone.glob("run-*.sst")).unlink()
    elif what == "footer":
        newest.write_bytes(newest.read_bytes()[:-20])
    elif what in ("MANIFEST", "changelog"):
        if what == "changelog":  # damage to its last record looks like a torn end
            with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
                append(store, 7000, 10)
                append(store, 8000, 10)
        *_, path = sorted(standalone.glob(f"{what}-*"))  # of MANIFESTs a close leaves two
        data = bytearray(path.read_bytes())
        data[40 if what == "changelog" else 8] ^= 1
        path.write_bytes(data)
    else:
        damage(newest if what == "edit" else min(standalone.glob("run-*.sst")), what)
    status, values, errors = run(
        monkeypatch, capsys, *arguments_of(command, standalone, tmp_path / "new")
    )
    assert "Traceback" not in errors
    if command == "verify":
        assert status != 0
    if status == 0:
        assert values
    elif command == "dump":
        assert named(status, errors), (status, values, errors)
    elif not values:
        assert refused(status, values, errors), (status, values, errors)
    if command == "repair" and what in ("row", "key", "gone", "changelog"):
        assert values[0]["losses"]
        assert status == 1


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != "checkpoints"])
def test_wrong_content_gives_json_or_one_sentence(
    monkeypatch, capsys, tmp_path, standalone, command
):
    """Behind right checksums."""
    path = max(standalone.glob("run-*.sst"))
    whole = path.read_bytes()
    made = Damage(whole, command)
    for number in range(40):
        changed, _ = made.of(("key", "index", "top", "filter", "edit", "row")[number % 6])
        path.write_bytes(changed)
        target = tmp_path / f"new-{number}"
        status, values, errors = run(
            monkeypatch, capsys, *arguments_of(command, standalone, target)
        )
        assert "Traceback" not in errors
        is_told = named(status, errors) if command == "dump" else values
        assert status == 0 or is_told or refused(status, values, errors)
        path.write_bytes(whole)
        if command == "compact":
            return  # it may have written


@pytest.mark.parametrize("command", ["inspect", "stats", "verify"])
def test_a_damaged_checkpoint_beside_a_whole_state(monkeypatch, capsys, standalone, command):
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
        store.checkpoint("kept")
    assert run(monkeypatch, capsys, command, str(standalone), "--json")[0] == 0
    (path,) = standalone.glob("CHECKPOINT-*")
    path.write_bytes(path.read_bytes()[:-1])
    status, values, _ = run(monkeypatch, capsys, command, str(standalone), "--json")
    assert status == 1
    assert path.name in json.dumps(values)
    # Who asks for a commit is not told of checkpoints.
    pointer = find_states(str(standalone))[0].pointer
    asked = ("inspect" if command == "stats" else command, str(standalone), "--json")
    status, values, _ = run(monkeypatch, capsys, *asked, "--pointer", pointer)
    assert status == 0
    assert path.name not in json.dumps(values)


def test_one_damaged_bucket_of_several(monkeypatch, capsys, tmp_path, bucket):
    damage(max(bucket.glob("commit-*.sst")), "row")
    status, values, _ = run(monkeypatch, capsys, "verify", str(tmp_path), "--json")
    assert (status, len(values)) == (1, 1)
    assert "damaged" in values[0]["found"]
    status, values, _ = run(monkeypatch, capsys, "inspect", str(tmp_path), "--json")
    assert (status, values[0]["rows"]) == (0, 1000)


def test_numbers_that_json_lacks_are_text(monkeypatch, capsys, tmp_path):
    key = pa.schema([("k", pa.int64())])
    rows = pa.schema([("x", pa.float64()), ("many", pa.list_(pa.float32())), ("raw", pa.binary())])
    values = [float("nan"), float("inf"), 0.5]
    batch = pa.record_batch([values, [[value] for value in values], [b"\xff"] * 3], schema=rows)
    stream = StreamSchema("numbers", key, rows)
    with LsmStore.open(str(tmp_path), [stream], options=Options(memory_bytes=8 * MIB)) as store:
        store.append("numbers", batch, pa.record_batch([pa.array([1, 2, 3])], schema=key))
        store.commit()
    status, found, _ = run(monkeypatch, capsys, "dump", str(tmp_path), "numbers", "--json")
    assert status == 0
    assert [(row["x"], row["many"]) for row in found] == [
        ("nan", ["nan"]),
        ("inf", ["inf"]),
        (0.5, [0.5]),
    ]


def test_the_program_itself_says_it_in_one_sentence(tmp_path):
    """And not only its function."""
    ended = subprocess.run(
        [sys.executable, "-m", "lsmstate", "inspect", str(tmp_path / "none"), "--json"],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_directory_is_named_with_what_to_give(monkeypatch, capsys, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("")
    for place, said in (
        (tmp_path / "none", f"{tmp_path / 'none'} is not there; name the directory of a "),
        (file, "is a file, not a directory; name "),
    ):
        found = run(monkeypatch, capsys, *arguments_of(command, place, tmp_path / "new"))
        assert refused(*found), found
        assert said in found[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_store_that_is_open_is_named(monkeypatch, capsys, tmp_path, standalone):
    with LsmStore.open(str(standalone), [STREAM], options=Options(memory_bytes=8 * MIB)):
        for command in ("compact", "repair"):
            found = run(monkeypatch, capsys, *arguments_of(command, standalone, tmp_path / "new"))
            assert refused(*found), found
            assert str(os.getpid()) in found[2]
