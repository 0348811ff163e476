"""Imports point downward only, and two foreign packages have one place each."""

import ast
import re
from pathlib import Path

import pytest

from support.paths import ROOT

#: From the bottom up: a layer may import itself and what stands before it.
LAYERS = ("cython_ext", "lsmstate", "joins", "spark_integration")

#: Faces re-export the public names of upper layers, hold no code, and are the one exception.
FACES = ("lsmstate/spark.py", "lsmstate/join.py")

#: Only these may import the package.
OWNERS = {"pyspark": "spark_integration/", "rocksdict": "lsmstate/rocks_"}

CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))"
)


def sources(*suffixes: str) -> list[str]:
    found = [path for layer in LAYERS for path in (ROOT / layer).rglob("*") if path.is_file()]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.suffix in suffixes)


def imported_by_python(text: str) -> set[str]:
    """Full names of the modules a Python file imports, anywhere in it, also for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import: write the full name"
            names.add(node.module or "")
            # `from lsmstate import spark` imports lsmstate.spark.
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            names.add(str(node.args[0].value))
    return names


def imported_by_cython(text: str) -> set[str]:
    """The same for Cython, which ``ast`` cannot read: import statements stand on their lines."""
    names: set[str] = set()
    for line in text.splitlines():
        found = CYTHON_IMPORT.match(line)
        if found is not None:
            names.update(name.strip() for name in (found[1] or found[2]).split(","))
    return names


def imports(path: str) -> set[str]:
    text = (ROOT / path).read_text()
    return imported_by_python(text) if path.endswith((".py", ".pyi")) else imported_by_cython(text)


def violations(path: str, names: set[str]) -> list[str]:
    own = LAYERS.index(path.split("/")[0])
    found = []
    for name in sorted(names):
        top = name.split(".")[0]
        if top in LAYERS and LAYERS.index(top) > own and path not in FACES:
            found.append(f"{path} imports {name} from the layer {top} above it")
        if top in OWNERS and not path.startswith(OWNERS[top]) and path not in FACES:
            found.append(f"{path} imports {name}; only {OWNERS[top]}* may")
    return found


@pytest.mark.parametrize("path", sources(".py", ".pyi", ".pyx", ".pxd"))
def test_imports_point_downward(path: str) -> None:
    assert violations(path, imports(path)) == []


def taken_from_the_jvm(text: str) -> set[str]:
    """PySpark's own attributes that hold objects of the JVM: used, or asked for by name."""
    nodes = list(ast.walk(ast.parse(text)))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return used & {"_jdf", "_jvm", "_jsc", "_jsparkSession", "_jreader", "_jwriter", "_jsq", "_jc"}


@pytest.mark.parametrize("path", [p for p in sources(".py") if not p.endswith("/catalyst.py")])
def test_one_module_takes_what_is_private_from_spark(path: str) -> None:
    assert taken_from_the_jvm((ROOT / path).read_text()) == set()


@pytest.mark.parametrize("path", FACES)
def test_a_face_holds_no_code(path: str) -> None:
    """Imports and names; at most a ``__getattr__`` that imports a name when it is first used."""
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            assert node.name == "__getattr__"
        elif isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) in ("__all__", "_MODULES")
        elif isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"
        else:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or isinstance(node, ast.ImportFrom), ast.unparse(node)


def test_the_check_would_notice() -> None:
    assert violations(
        "lsmstate/x.py", imported_by_python("from lsmstate.joins.specs.one_key import JoinSpec")
    )
    assert violations("joins/x.py", imported_by_python("def f():\n    import pyspark.sql"))
    assert violations("lsmstate/x.py", imported_by_python("import_module('rocksdict')"))
    assert violations("cython_ext/x.pyx", imported_by_cython("from lsmstate.errors cimport x"))
    assert violations(
        "cython_ext/x.pyx", imported_by_cython("    import os, lsmstate.joins.specs.one_key")
    )
    assert not violations("joins/x.py", imported_by_python("from lsmstate.store import Probe"))
    assert taken_from_the_jvm("df._jdf") == taken_from_the_jvm("hasattr(x, '_jdf')") == {"_jdf"}
    assert not violations(
        "lsmstate/spark.py",
        imported_by_python("import lsmstate.spark_integration.joins.multiway_join"),
    )


def test_every_package_is_listed_for_the_wheel() -> None:
    """setuptools is told its packages one by one; one forgotten is missing once installed."""
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {str(Path(path).parent).replace("/", ".") for path in sources(".py")}
    assert there == set(listed)
    for package in listed:
        assert (ROOT / package.replace(".", "/") / "__init__.py").exists(), package


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("lsmstate", {"pyarrow", "pyspark"}),
        # 8 MiB, and only states that are not in a local directory need it.
        ("lsmstate.state_location, lsmstate.lsm.store", {"pyarrow.fs", "pyspark"}),
    ],
)
def test_imports_are_light(module: str, heavy: set[str]) -> None:
    import subprocess
    import sys

    code = f"import {module}, sys; print({heavy!r} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_public_names_exist() -> None:
    import lsmstate

    for name in lsmstate.__all__:
        assert getattr(lsmstate, name) is not None
