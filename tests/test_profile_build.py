"""Builds guided by a profile: what setup.py makes of its two variables, in a project of two small
modules; and the load that the real ones are trained with runs."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COUNTED = """
cdef long step(long total, long number) noexcept:
    return total + number if number % 3 else total - number

def sum_up(long count):
    cdef long number, total = 0
    for number in range(count):
        total = step(total, number)
    return total
"""
IDLE = "def nothing():\n    return None\n"
RUN = "import cython_ext.counted as counted; print(counted.__file__, counted.sum_up(10))"
SUM_UP = "9"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of setup.py with modules of its own, in a place whose name has a space."""
    pytest.importorskip("blosc2", reason="setup.py looks for its static library")
    macros = subprocess.run(
        ["cc", "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True
    ).stdout
    if "__GNUC__" not in macros or "__clang__" in macros:
        pytest.skip("cc is not GCC")
    place = tmp_path_factory.mktemp("a project")
    (place / "cython_ext").mkdir()
    (place / "cython_ext" / "__init__.py").touch()
    (place / "cython_ext" / "counted.pyx").write_text(COUNTED)
    (place / "cython_ext" / "idle.pyx").write_text(IDLE)
    shutil.copy(ROOT / "setup.py", place)
    (place / "pyproject.toml").write_text(
        "[project]\nname = 'two'\nversion = '1'\n[tool.setuptools]\npackages = ['cython_ext']\n"
    )
    return place


@pytest.fixture(scope="module")
def profiles(project: Path) -> Path:
    """Of a run that used one of the modules."""
    where = project / "recorded here"
    built(project, "build", LSMSTATE_PROFILE_RECORD=where.name)
    assert run(where / "lib") == [f"{where}/lib/cython_ext/", SUM_UP]
    return where


def setup(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LSMSTATE_", "CC", "CFLAGS"))}
    return subprocess.run(
        [sys.executable, "setup.py", *arguments],
        cwd=project,
        env={**clean, "CC": "cc", **variables},
        capture_output=True,
        text=True,
    )


def built(project: Path, *arguments: str, **variables: str) -> dict[str, list[str]]:
    """How the modules were compiled, each by its command."""
    done = setup(project, *arguments, "--force", **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    commands = [shlex.split(line) for line in done.stdout.splitlines() if " -c " in line]
    found = {Path(words[words.index("-c") + 1]).stem: words for words in commands}
    assert found.keys() == {"counted", "idle"}
    return found


def run(where: Path) -> list[str]:
    """The directory that the module comes from, and what it computes."""
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=where, check=True, capture_output=True, text=True)
    path, result = done.stdout.rsplit(maxsplit=1)
    return [path[: path.rindex("counted.")], result]


def of_profiles(command: list[str]) -> list[str]:
    return [word for word in command if "profile" in word or word == "-dumpdir"]


def test_a_module_is_compiled_with_its_profile_where_it_has_one(
    project: Path, profiles: Path
) -> None:
    assert [path.name for path in profiles.glob("*.gcda")] == ["counted.gcda"]
    commands = built(project, "build_ext", "--inplace", LSMSTATE_PROFILE_USE=str(profiles))
    assert {"-fprofile-use", "-fprofile-partial-training"} < set(commands["counted"])
    assert of_profiles(commands["idle"]) == []
    assert run(project) == [f"{project}/cython_ext/", SUM_UP]


def test_the_profile_fits_every_function_from_any_directory(
    project: Path, profiles: Path, tmp_path: Path
) -> None:
    """GCC knows static functions, which is all but one of Cython's, by names it makes of paths."""
    shutil.copytree(project, tmp_path / "copy", ignore=shutil.ignore_patterns("build", "*.so"))
    use = {"LSMSTATE_PROFILE_USE": str(profiles)}
    command = built(tmp_path / "copy", "build_ext", "--inplace", **use)["counted"]
    spoken = [word for word in command if not word.startswith("-Wno-")]
    done = subprocess.run(
        [*spoken, "-Wmissing-profile", "-Wcoverage-mismatch"],
        cwd=tmp_path / "copy",
        check=True,
        capture_output=True,
        text=True,
    )
    assert "profile" not in done.stderr


def test_builds_with_assertions_have_no_part_in_it(project: Path, profiles: Path) -> None:
    for variable in ("LSMSTATE_PROFILE_USE", "LSMSTATE_PROFILE_RECORD"):
        variables = {variable: str(profiles), "LSMSTATE_DEBUG": "1"}
        commands = built(project, "build_ext", "--inplace", **variables)
        assert [of_profiles(command) for command in commands.values()] == [[], []]
        assert "-O1" in commands["counted"]


def test_other_compilers_compile_without(project: Path, profiles: Path, tmp_path: Path) -> None:
    """One that says of itself what clang does."""
    other = tmp_path / "otherc"
    other.write_text('#!/bin/sh\nexec cc -D__clang__=1 "$@"\n')
    other.chmod(0o755)
    use = {"CC": str(other), "LSMSTATE_PROFILE_USE": str(profiles)}
    commands = built(project, "build_ext", "--inplace", **use)
    assert commands["counted"][0] == str(other)
    assert of_profiles(commands["counted"]) == []
    refused = setup(project, "build", CC=str(other), LSMSTATE_PROFILE_RECORD=str(tmp_path))
    assert refused.returncode != 0
    assert refused.stderr.splitlines()[-1].endswith(f"with GCC only, not with {other}")


def test_profiles_are_recorded_or_used_not_both(project: Path, tmp_path: Path) -> None:
    both = {"LSMSTATE_PROFILE_USE": str(tmp_path), "LSMSTATE_PROFILE_RECORD": str(tmp_path)}
    refused = setup(project, "build", **both)
    assert refused.returncode != 0
    assert "not both" in refused.stderr


def test_an_editable_installation_keeps_what_is_compiled(
    project: Path, profiles: Path, tmp_path: Path
) -> None:
    built(project, "build_ext", "--inplace", LSMSTATE_PROFILE_USE=str(profiles))
    module = next((project / "cython_ext").glob("counted*.so"))
    before = module.read_bytes()
    done = setup(project, "editable_wheel", "--dist-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list(tmp_path.glob("*.whl"))) == 1
    assert " -c " not in done.stdout
    assert module.read_bytes() == before


def test_the_training_runs(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "bench" / "training.py", "--rows", "4000", "--batches", "2"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert list(tmp_path.iterdir()) == []
