"""What users name is printed as it is, whatever a library makes of brackets and colons in it."""

import pyarrow as pa
import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.store import StreamSchema
from support.cli_cases import run
from support.inspected_states import OPTIONS

KEY = pa.schema([("k", pa.int64())])
NAMES = ["[/x]", "[red]", "a[/b]", ":smile:", "a[bold]b"]


@pytest.fixture(params=NAMES)
def named(tmp_path, request):
    """(directory, stream): their names and that of a column."""
    stream = StreamSchema(request.param, KEY, pa.schema([(request.param, pa.string())]))
    directory = tmp_path / request.param.replace("/", "")
    with LsmStore.open(str(directory), [stream], options=OPTIONS) as store:
        keys = pa.record_batch([pa.array([1])], schema=KEY)
        rows = pa.record_batch([pa.array([request.param])], schema=stream.rows)
        store.append(request.param, rows, keys)
        store.checkpoint("c")
    return directory, request.param


def test_inspect_and_stats_print_names_literally(named):
    directory, stream = named
    shown = run("inspect", directory)
    assert shown.exit_code == 0, shown.exception
    assert str(directory) in shown.output
    assert f"streams: {stream}\n" in shown.output
    shown = run("stats", directory)
    assert shown.exit_code == 0, shown.exception
    assert str(directory) in shown.output


def test_a_table_of_rows_has_its_columns_by_name(named):
    directory, stream = named
    shown = run("dump", directory, stream, "--table")
    assert shown.exit_code == 0, shown.exception
    header, row = shown.output.splitlines()[1:4:2]
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == ["_key_k", stream]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["1", stream]


def test_a_name_longer_than_a_line_is_printed_whole(tmp_path):
    name = "n" * 200
    stream = StreamSchema("s", KEY, pa.schema([(name, pa.int64())]))
    with LsmStore.open(str(tmp_path), [stream], options=OPTIONS) as store:
        keys = pa.record_batch([pa.array([1])], schema=KEY)
        store.append("s", pa.record_batch([pa.array([1])], schema=stream.rows), keys)
        store.commit()
    assert run("dump", tmp_path, "s", "--table").output.count("n") == 200
