"""The commands that look inside a state on disk."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from lsmstate import Expiry, open_store
from lsmstate.cli import state as cli_state
from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.store import LsmStore
from lsmstate.opening import open_attempt
from lsmstate.schema.documents import SCHEMA_FREE, encode_documents
from lsmstate.store import StreamSchema
from lsmstate.tools.inspection import find_states
from lsmstate.tools.stored_keys import decoded_key
from support.cli_cases import KEY, ROWS, STREAM, rows, run
from support.inspected_states import OPTIONS
from support.inspected_states import buckets as buckets
from support.inspected_states import standalone as standalone


def test_inspect_shows_rows_and_runs(standalone):
    shown = run("inspect", standalone)
    assert shown.exit_code == 0
    assert "500 rows" in shown.output
    found = json.loads(run("inspect", standalone, "--json").output)
    assert found["rows"] == 500
    assert found["streams"] == [{"name": "people", "key": ["k: int64"], "columns": 2}]
    assert sum(file["keys"] for run in found["runs"] for file in run["files"]) == 500


def test_every_bucket_of_a_query_is_shown(buckets):
    found = [json.loads(line) for line in run("inspect", buckets, "--json").output.splitlines()]
    assert [state["rows"] for state in found] == [10, 11]


def test_verify_names_the_damaged_file(standalone):
    assert run("verify", standalone).exit_code == 0
    file = next(standalone.glob("run-*.sst"))
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(bytes(data))
    shown = run("verify", standalone, "--json")
    assert shown.exit_code == 1
    (line,) = [json.loads(line) for line in shown.output.splitlines()]
    assert line["file"] == file.name
    assert "damaged" in line["found"]


def test_dump_prints_rows_and_leaves_the_directory_alone(buckets):
    before = sorted(buckets.rglob("*"))
    lines = run("dump", buckets, "people", "--limit", 12).output.splitlines()
    assert len(lines) == 12
    assert json.loads(lines[3]) == {"_key_k": 3, "k": 3, "text": "person 3"}
    assert sorted(buckets.rglob("*")) == before
    assert run("dump", buckets, "people", "--limit", 12, "--json").output.splitlines() == lines
    shown = run("dump", buckets, "people", "--limit", 12, "--table").output
    assert "person 3" in shown
    assert "text" in shown.splitlines()[1]


def test_a_commit_that_was_never_sealed_is_passed_over(buckets):
    torn = buckets / "bucket-0" / "commit-0000000009-dead-0001.sst"
    torn.write_bytes(b"LSMSTATE")
    assert [len(state.found.edit.version.runs) for state in find_states(str(buckets))] == [1, 1]


def test_an_empty_directory_is_refused_with_what_to_name(tmp_path):
    with pytest.raises(InvalidArgumentError, match="holds no committed state"):
        find_states(str(tmp_path))


def test_dump_shows_documents(tmp_path):
    stream = StreamSchema("logs", KEY, SCHEMA_FREE)
    with LsmStore.open(str(tmp_path), [stream], options=OPTIONS) as store:
        keys = pa.record_batch([pa.array([1, 2], pa.int64())], schema=KEY)
        store.append("logs", encode_documents([{"a": 1}, {"b": [None]}]), keys)
        store.commit()
    lines = run("dump", tmp_path, "logs").output.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"_key_k": 1, "a": 1},
        {"_key_k": 2, "b": [None]},
    ]


def test_dump_shows_keys_that_are_no_columns_of_the_rows(tmp_path):
    """Under names that no row has, and of every type."""
    key = pa.schema([("user", pa.int64()), ("share", pa.float64()), ("raw", pa.binary())])
    stream = StreamSchema("clicks", key, pa.schema([("_key_user", pa.string())]))
    with LsmStore.open(str(tmp_path), [stream], options=OPTIONS) as store:
        keys = pa.RecordBatch.from_pylist(
            [
                {"user": 2, "share": float("nan"), "raw": b"x"},
                {"user": 1, "share": 0.5, "raw": b""},
            ],
            schema=key,
        )
        store.append("clicks", pa.record_batch([pa.array(["/b", "/a"])], schema=stream.rows), keys)
        store.commit()
    lines = run("dump", tmp_path, "clicks").output.splitlines()
    assert [list(json.loads(line).items()) for line in lines] == [
        [("__key_user", 1), ("__key_share", 0.5), ("__key_raw", "b''"), ("_key_user", "/a")],
        [("__key_user", 2), ("__key_share", "nan"), ("__key_raw", "b'x'"), ("_key_user", "/b")],
    ]
    shown = run("dump", tmp_path, "clicks", "--table", "--limit", 1).output.splitlines()
    assert [cell.strip() for cell in shown[3].strip("│").split("│")] == ["1", "0.5", "b''", "/a"]


def test_a_run_of_deleted_ranges_only_is_shown(standalone):
    with LsmStore.open(str(standalone), [STREAM], options=OPTIONS) as store:
        store.delete_range("people", low=(2,), high=(5,))
        store.commit()
    found = json.loads(run("inspect", standalone, "--json").output)
    assert [(len(each["files"]), each["deleted_ranges"]) for each in found["runs"]] == [
        (1, 0),
        (0, 1),
    ]
    shown = run("inspect", standalone)
    assert shown.exit_code == 0, shown.exception
    cells = [line.strip("│").split("│") for line in shown.output.splitlines() if "│" in line]
    assert " ".join(cell.strip() for cell in cells[-1]) == "2 0 0 0 0 0 0 1 -"
    assert "keys of run 2" not in shown.output


def test_key_ranges_are_shown_as_values(tmp_path):
    day = StreamSchema("days", pa.schema([("at", pa.date32()), ("page", pa.string())]), ROWS)
    with LsmStore.open(str(tmp_path), [day, STREAM], options=OPTIONS) as store:
        store.append("people", *rows(500, start=-1))
        dates = pa.array([0, 1], pa.int32()).cast(pa.date32())
        pages = pa.array(["/" + "a" * 100, "/é"])
        store.append("days", rows(2)[0], pa.record_batch([dates, pages], schema=day.key))
        store.retract("people", *rows(1, start=7))
        store.commit()
    (file,) = json.loads(run("inspect", tmp_path, "--json").output)["runs"][0]["files"]
    assert bytes.fromhex(file["min_key"])[:2] == b"\0\0"
    assert file["first_key"] == {
        "stream": "days",
        "retracted": False,
        "key": {"at": "1970-01-01", "page": "/" + "a" * 100},
    }
    assert file["last_key"] == {"stream": "people", "retracted": True, "key": {"k": 7}}
    shown = run("inspect", tmp_path).output
    cut = '"1970-01-01", "/' + "a" * 44
    assert f"keys of run 1: days ({cut}...) to people retracted (7)\n" in shown


def test_bytes_that_are_no_key_of_the_streams_do_not_decode():
    """Nor does a date that Python has not."""
    streams = [STREAM, StreamSchema("days", pa.schema([("at", pa.date32())]), ROWS)]
    number = b"\x80" + bytes(6) + b"\x05"
    assert decoded_key(streams, b"\0\0" + number)["key"] == {"k": 5}
    broken = (b"\0\0", b"\0\0" + number[:-1], b"\0\4" + number, b"\0\1" + b"\xff" * 4)
    for stored in (b"", b"\0", *broken):
        assert decoded_key(streams, stored) is None


def test_the_table_of_runs_fits_80_characters(standalone, monkeypatch):
    """Also where numbers are large: a header of three lines, and one for each run."""
    described = json.loads(run("inspect", standalone, "--json").output)
    (file,) = described["runs"][0]["files"]
    large = {"bytes": 2_345_678_901, "rows": 23_456_789, "deleted_ranges": 12, "level": 3}
    file |= {"keys": 12_345_678, "tombstones": 123_456, "filter_bytes": 15_000_000}
    described["runs"] = [described["runs"][0] | large | {"number": n} for n in (101, 102)]
    monkeypatch.setattr(cli_state, "describe", lambda state: described)
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("inspect", standalone).output.splitlines()
    (first, *_), (last, *_) = ([i for i, s in enumerate(lines) if s[0] == c] for c in "┏└")
    assert last - first == len(("┏", *"123", "┡", *"12"))
    assert max(len(line) for line in lines[first : last + 1]) <= 80
    assert "2,345,678,901│12,345,678│23,456,789│" in lines[last - 1]


@pytest.mark.parametrize("kept", ["process", "attempt"])
def test_retractions_of_streams_with_and_without_expiry_are_verified(tmp_path, kept):
    """Each slot of time has a hidden stream of its own; some retractions wait for their rows."""
    streams = [replace(STREAM, name="visits", expiry=Expiry("k", 40)), STREAM]
    if kept == "process":
        store = open_store(str(tmp_path), streams, options=OPTIONS)
    else:
        store = open_attempt(str(tmp_path), streams, batch_id=0, attempt_id="a", options=OPTIONS)
    with store:
        for name in ("visits", "people"):
            store.append(name, *rows(50))
        store.advance("visits", 45)  # rows up to 5 are due
        for name in ("visits", "people"):
            store.retract(name, *rows(10, start=15))
            store.retract(name, *rows(5, start=60))  # not there yet
        store.commit()
    done = run("verify", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    found = [json.loads(line)["found"] for line in done.output.splitlines()]
    assert sum(each.get("rows", 0) for each in found) >= 2 * (44 + 10 + 5)


def test_a_stream_with_an_expiry_goes_by_its_own_name(tmp_path):
    expiring = replace(STREAM, name="visits", expiry=Expiry("k", 40))
    with open_store(str(tmp_path), [expiring, STREAM], options=OPTIONS) as store:
        store.append("visits", *rows(50))
        store.advance("visits", 60)  # rows up to 20 are due
        store.commit()
    lines = run("dump", tmp_path, "visits").output.splitlines()
    assert sorted(json.loads(line)["k"] for line in lines) == list(range(21, 50))
    found = json.loads(run("inspect", tmp_path, "--json").output)
    assert [stream["name"] for stream in found["streams"]] == ["visits", "people"]
    with pytest.raises(InvalidArgumentError, match="did you mean 'visits'"):
        raise run("dump", tmp_path, "visit").exception
