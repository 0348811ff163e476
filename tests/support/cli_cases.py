"""The command line program, called in this process, and the stream of its states."""

import json
import sys

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import lsmstate.cli.main
from lsmstate.cli.main import app
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("people", KEY, ROWS)


def rows(count, start=0):
    """So many rows, and their keys."""
    numbers = pa.array(range(start, start + count), pa.int64())
    texts = pa.array([f"person {i}" for i in range(start, start + count)])
    return (
        pa.record_batch([numbers, texts], schema=ROWS),
        pa.record_batch([numbers], schema=KEY),
    )


def append(store, start, count):
    store.append("people", *rows(count, start))


def run(*arguments):
    """What typer's runner gives of a command."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_program(monkeypatch, capsys, *arguments):
    """(exit status, JSON values on standard output, text on standard error) of the program."""
    monkeypatch.setattr(sys, "argv", ["lsmstate", *arguments])
    with pytest.raises(SystemExit) as ended:
        lsmstate.cli.main.main()
    shown = capsys.readouterr()
    values = [
        json.loads(line, parse_constant=pytest.fail) for line in shown.out.splitlines() if line
    ]
    return ended.value.code or 0, values, shown.err


def refused(status, values, errors):
    """Whether one sentence says why nothing was done."""
    return status == 2 and not values and errors.startswith("lsmstate: ") and len(errors) < 600
