"""What users install: this checkout in place, and sdist and wheel from a clean copy of the sources,
tried in a virtual environment of its own and from another directory (`make dist-check`)."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

from support.page_blocks import blocks_of, runs, said
from support.paths import ROOT


def each_is_slow(test: Callable[..., None]) -> Callable[..., None]:
    """A test that builds: it takes minutes, and needs a package index."""
    return pytest.mark.stress(pytest.mark.timeout(1800)(test))


#: Nothing that a clone lacks may help the build.
NOT_CLONED = shutil.ignore_patterns(
    ".git", ".venv*", ".data", ".run", "build", "dist", "*.so", "*.c", "*.egg-info", "__pycache__"
)
#: Tests that exercise every module of the store, against the installed wheel.
STORE_TESTS = (
    *("store/contract/test_stores.py", "store/lsm/test_lsm_store.py"),
    *("sstable/test_sst.py", "codecs/test_row_codec.py"),
)

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


def python_says(directory: Path, code: str) -> subprocess.CompletedProcess[str]:
    """What this environment's Python answers in another directory, without the checkout's path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("layer", ["cython_ext", "joins", "spark_integration"])
def test_layers_are_importable_only_inside_the_package(layer: str, tmp_path: Path) -> None:
    inside = python_says(tmp_path, f"import lsmstate.{layer} as it; print(it.__file__)")
    assert inside.returncode == 0, inside.stderr
    outside = python_says(tmp_path, f"import {layer}")
    assert f"No module named '{layer}'" in outside.stderr


def test_a_traceback_names_the_file_of_the_tree(tmp_path: Path) -> None:
    code = "from lsmstate.joins.conditions import intervals as i; i.parse_duration('x', 'within')"
    shown = python_says(tmp_path, code).stderr
    assert "lsmstate/joins/conditions/intervals.py" in shown
    assert "lsmstate.InvalidArgumentError: " in shown.splitlines()[-1]


@pytest.fixture(scope="module")
def editable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with an editable installation, made without a compiler."""
    home = tmp_path_factory.mktemp("editable")
    clone, site = home / "clone", home / "site"
    shutil.copytree(ROOT, clone, ignore=NOT_CLONED)
    build = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "editable_wheel", "--dist-dir", str(home)],
        cwd=clone,
        env={**os.environ, "LSMSTATE_NO_EXTENSIONS": "1"},
        capture_output=True,
        text=True,
    )
    assert build.returncode == 0, build.stderr[-2000:]
    (wheel,) = home.glob("*.editable-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def test_spark_finds_the_data_source_of_an_editable_installation(editable: Path) -> None:
    # As Spark looks: ``pyspark.sql.worker.lookup_data_sources``.
    code = f"import pkgutil; print(*pkgutil.iter_modules([{str(editable)!r}]))"
    assert "name='pyspark_lsmstate'" in python_says(editable, code).stdout


def test_the_description_links_to_no_file(editable: Path) -> None:
    """It is README.md, and is read where none of its files are."""
    (found,) = editable.glob("*.dist-info/METADATA")
    metadata = Parser().parsestr(found.read_text(encoding="utf-8"))
    assert metadata["Description-Content-Type"] == "text/markdown"
    told = metadata.get_payload()
    assert isinstance(told, str)
    targets = re.findall(r"\]\(([^)]*)\)", told)
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    blocks = [each.code for each in blocks_of(ROOT / "README.md")]
    assert [code for code in blocks if code not in told] == []
    assert "Quick start (`docs/quickstart.md`)" in told


@each_is_slow
def test_the_wheel_is_for_every_python_from_3_11(wheel: Path) -> None:
    assert re.fullmatch(r"lsmstate-[0-9.]+-cp311-abi3-\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    modules = {Path(name).name for name in names if name.endswith(".so")}
    assert modules == {
        "_cyutility.abi3.so",
        *(f"{path.stem}.abi3.so" for path in (ROOT / "cython_ext").rglob("*.pyx")),
    }


@each_is_slow
def test_the_wheel_holds_what_is_used_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = {name for name in names if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in kept} == {"lsmstate", "pyspark_lsmstate.py"}
    assert {Path(name).suffix for name in kept} == {
        ".so",
        ".py",
        ".pyi",
        ".pxd",
        ".typed",
        ".properties",
        *(".html", ".js", ".css", ".LICENSE"),
    }
    sources = subprocess.run(
        ["git", "ls-files", "*.py", "*.pyi", "*.properties", "lsmstate/py.typed", "lsmstate/ui"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    upper = ("cython_ext", "joins", "spark_integration")
    wanted = {f"lsmstate/{name}" for name in sources if name.split("/")[0] in upper}
    wanted |= {name for name in sources if name.startswith("lsmstate/")}
    assert wanted <= kept
    licences = {Path(name).name for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE", "uPlot.LICENSE"}


@each_is_slow
def test_the_sdist_holds_sources_and_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert not {name for name in names if name.endswith((".c", ".so", ".pyc"))}
    wanted = {"setup.py", "Makefile", "LICENSE", "NOTICE", "tests/project/test_packaging.py"}
    sources = {f"lsmstate/{p.relative_to(ROOT)}" for p in (ROOT / "cython_ext").rglob("*.p[yx]*")}
    assert not any(name.split("/")[0] in ("joins", "cython_ext") for name in names)
    golden = {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "tests/data").rglob("*") if p.is_file()
    }
    assert wanted | sources | golden <= names


@each_is_slow
def test_an_index_takes_both(built: Path, installed: Path) -> None:
    """Their metadata is complete, and their description can be shown."""
    run(installed, "-m", "pip", "install", "--quiet", "twine", directory=built)
    files = [path.name for path in built.iterdir()]
    assert len(files) == 2
    told = run(installed, "-m", "twine", "check", "--strict", *files, directory=built)
    assert told.count("PASSED") == 2


@each_is_slow
def test_an_installed_wheel_works_in_any_directory(installed: Path, tmp_path: Path) -> None:
    run(installed, "-c", SMOKE, directory=tmp_path)
    command = installed.parent / "lsmstate"
    assert re.fullmatch(r"[0-9.]+\n", run(command, "--version", directory=tmp_path))
    assert "1,000 rows" in run(command, "inspect", "state", directory=tmp_path)
    assert "ok run-" in run(command, "verify", "state", directory=tmp_path)


@each_is_slow
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


@each_is_slow
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_first_pages_in_a_fresh_environment(wheel: Path, tmp_path: Path, page: str) -> None:
    """What they say is installed, run and printed, with the wheel in the place of the checkout."""
    blocks = blocks_of(ROOT / page)
    commands = [line for each in blocks if each.language == "sh" for line in each.code.splitlines()]
    (install,) = [line for line in commands if line.startswith("pip install")]
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    (asked,) = re.findall(r"pip install '\.(\[\w+\])'", install)
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}{asked}", directory=tmp_path)
    code = "\n".join(each.code for each in runs(ROOT / page) if each.language == "python")
    told = run(python, "-c", f"{code}\nprint(home)", directory=tmp_path)
    *printed, home = told.splitlines()
    assert printed == said(code)
    for line in commands:
        if line.startswith("lsmstate "):
            command = shlex.split(line, comments=True)[1:]
            run(python.parent / "lsmstate", *command, directory=Path(home))


@each_is_slow
def test_the_wheel_runs_on_older_systems(wheel: Path, tmp_path: Path) -> None:
    """What `make wheel` does with it."""
    shutil.copy(wheel, tmp_path)
    told = run(sys.executable, ROOT / ".ci" / "wheel-policy", tmp_path, directory=tmp_path)
    assert "tagged manylinux_2_28_" in told
    (tagged,) = tmp_path.glob("*.whl")
    assert "-cp311-abi3-manylinux_2_28_" in tagged.name
