"""The command line where the file that says which commit counts is damaged or gone."""

import shutil

import pytest

from lsmstate.errors import InvalidArgumentError
from support.cli_cases import refused, run, run_program
from support.upkeep_states import standalone as standalone

#: Their arguments behind the directory.
COMMANDS = {
    "inspect": [],
    "verify": [],
    "stats": [],
    "dump": ["people"],
    "compact": [],
    "export": ["EXPORTED"],
    "checkpoints": [],
    "checkpoints --create": ["--create", "x"],
    "checkpoints --delete": ["--delete", "x"],
}


@pytest.fixture(params=["torn", "flipped", "gone"])
def beheaded(standalone, request):
    """A store without a whole MANIFEST, with whole stores below it."""
    for name in ("one", "two"):
        shutil.copytree(standalone, standalone / name)
    *before, path = sorted(standalone.glob("MANIFEST-*"))
    for older in before:  # that the one which sealed the log replaced
        older.unlink()
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    if request.param == "gone":
        path.unlink()
    else:
        path.write_bytes(data if request.param == "flipped" else data[:30])
    return standalone


@pytest.mark.parametrize("command", COMMANDS)
def test_the_damage_and_the_remedy_are_named(monkeypatch, capsys, beheaded, command):
    more = [each.replace("EXPORTED", f"{beheaded}-exported") for each in COMMANDS[command]]
    arguments = [command.split()[0], str(beheaded), *more]
    status, values, errors = run_program(monkeypatch, capsys, *arguments, "--json")
    told = errors + "".join(str(value) for value in values)
    assert status == 1 or refused(status, values, errors)
    assert "MANIFEST" in told
    assert f"lsmstate repair {beheaded} NEW-DIRECTORY" in told
    assert str(beheaded / "one") not in told


def test_checkpoints_of_such_a_store_are_listed(standalone):
    run("checkpoints", standalone, "--create", "c")
    (path,) = standalone.glob("MANIFEST-*")
    path.unlink()
    assert run("checkpoints", standalone).exit_code == 0
    assert run("restore", standalone, f"{standalone}-new").exit_code == 0


def test_what_was_begun_and_never_committed_is_no_damage(tmp_path):
    (tmp_path / "run-0000000001.sst").write_bytes(b"LSMSTATE")
    with pytest.raises(InvalidArgumentError, match="holds no committed state"):
        raise run("verify", tmp_path).exception


def test_repair_writes_nothing_into_what_it_reads(standalone):
    before = sorted(standalone.rglob("*"))
    for target in (standalone / "new", standalone / "a" / "b", standalone / ".." / "store" / "new"):
        with pytest.raises(InvalidArgumentError, match="lies inside"):
            raise run("repair", standalone, target).exception
    assert sorted(standalone.rglob("*")) == before
    assert run("repair", standalone, f"{standalone}-new").exit_code == 0
