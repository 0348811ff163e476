"""What users install: sdist and wheel from a clean copy of the sources, tried in a virtual
environment of its own and from another directory. `make dist-check`; needs a package index."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = [pytest.mark.stress, pytest.mark.timeout(1800)]

#: Nothing that a clone lacks may help the build.
NOT_CLONED = shutil.ignore_patterns(
    ".git", ".venv*", ".data", ".run", "build", "dist", "*.so", "*.c", "*.egg-info", "__pycache__"
)
#: Tests that exercise every module of the store, against the installed wheel.
STORE_TESTS = ("test_stores.py", "test_lsm_store.py", "test_sst.py", "test_row_codec.py")

SMOKE = """
import sys
import pyarrow as pa
import lsmstate.cython_ext.base.compression, lsmstate
from lsmstate import Options, StreamSchema, open_store

for module in (lsmstate.cython_ext.base.compression, lsmstate):
    assert module.__file__.startswith(sys.prefix), module.__file__
key = pa.schema([("k", pa.int64())])
rows = pa.schema([("text", pa.string())])
streams = [StreamSchema("s", key, rows)]
with open_store("state", streams, options=Options()) as store:
    numbers = pa.record_batch([pa.array(range(1000))], schema=key)
    texts = pa.record_batch([pa.array([f"row {i}" for i in range(1000)])], schema=rows)
    assert store.append("s", texts, numbers) == 1000
    store.commit()
    probe = store.probe("s", numbers)
    assert probe.counts.sum() == 1000
    (found,) = probe.fetch(probe.counts.nonzero()[0], 1 << 20)
    assert found.rows.equals(texts)
"""


def run(*command: object, directory: Path) -> str:
    # Neither this checkout nor a user's site may help.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**environment, "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with sdist and wheel, the wheel made from the sdist."""
    clone = tmp_path_factory.mktemp("clone") / "lsmstate"
    shutil.copytree(ROOT, clone, ignore=NOT_CLONED)
    run(sys.executable, "-m", "build", "--outdir", "dist", directory=clone)
    return clone / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh virtual environment with the wheel and what it depends on."""
    directory = tmp_path_factory.mktemp("fresh")
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, directory=directory)
    return python


def test_the_wheel_is_for_every_python_from_3_11(wheel: Path) -> None:
    assert re.fullmatch(r"lsmstate-[0-9.]+-cp311-abi3-\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    modules = {Path(name).name for name in names if name.endswith(".so")}
    assert modules == {f"{p.stem}.abi3.so" for p in (ROOT / "cython_ext").glob("*.pyx")}


def test_the_wheel_holds_what_is_used_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in kept} == {
        "cython_ext",
        "lsmstate",
        "joins",
        "spark_integration",
        "pyspark_lsmstate.py",
    }
    assert {Path(name).suffix for name in kept} == {
        ".so",
        ".py",
        ".pyi",
        ".pxd",
        ".typed",
        ".properties",
    }
    for package in ("cython_ext", "lsmstate", "joins", "spark_integration"):
        assert f"{package}/py.typed" in kept
    stubs = {f"cython_ext/{p.name}" for p in (ROOT / "cython_ext").glob("*.pyi")}
    assert stubs <= kept
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


def test_the_sdist_holds_sources_and_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.endswith((".c", ".so", ".pyc"))}
    wanted = {"setup.py", "Makefile", "LICENSE", "NOTICE", "tests/test_packaging.py"}
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "cython_ext").glob("*.p[yx]*")}
    golden = {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "tests/data").rglob("*") if p.is_file()
    }
    assert wanted | sources | golden <= names


def test_an_installed_wheel_works_in_any_directory(installed: Path, tmp_path: Path) -> None:
    run(installed, "-c", SMOKE, directory=tmp_path)
    command = installed.parent / "lsmstate"
    assert re.fullmatch(r"[0-9.]+\n", run(command, "--version", directory=tmp_path))
    assert "1,000 rows" in run(command, "inspect", "state", directory=tmp_path)
    assert "ok run-" in run(command, "verify", "state", directory=tmp_path)


def test_the_wheel_keeps_the_contract(built: Path, installed: Path, tmp_path: Path) -> None:
    """With the tests that the sdist brings, and none of its sources beside them."""
    extras = ("pytest", "pytest-timeout", "hypothesis", "rocksdict")
    run(installed, "-m", "pip", "install", "--quiet", *extras, directory=tmp_path)
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("lsmstate-*")
    place = tmp_path / "away"
    shutil.copytree(unpacked / "tests", place / "tests")
    shutil.copy(unpacked / "pyproject.toml", place)
    tests = [f"tests/{name}" for name in STORE_TESTS]
    shown = run(installed, "-m", "pytest", "-q", *tests, directory=place)
    assert re.search(r"\d{3} passed", shown), shown[-500:]
