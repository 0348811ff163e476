"""Numbers that a command cannot use are refused with exit status 2, and nothing is printed."""

import pytest

from support.cli_cases import run_program

AT_LEAST_1 = ("--buckets", "--batches", "--cores")


@pytest.mark.parametrize(
    "command",
    [
        ("dump", "s", "s", "--limit", "-1"),
        ("state", "c", "--stream", "s", "--limit", "-1"),
        ("state", "c", "--batch", "-1"),
        ("state", "c", "--bucket", "-2"),
        ("rescale", "c", "--buckets", "0"),
        ("demo", "--batches", "0"),
        ("demo", "--cores", "-1"),
    ],
    ids=" ".join,
)
def test_numbers_out_of_range(monkeypatch, capsys, command):
    status, shown, told = run_program(monkeypatch, capsys, *command)
    assert status == 2
    assert shown == []
    option, value = command[-2:]
    assert told == f"lsmstate: {option}={value}: give {int(option in AT_LEAST_1)} or more\n"
