"""Imports point downward only, from layer to layer and from package to package, and two foreign
packages have one place each."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.paths import ROOT

#: The layers from the bottom up, and the packages inside each, also from the bottom up: a package
#: may import itself and what stands before it. A file in a layer's root stands for itself, at
#: whatever place it can have.
ORDER = {
    "cython_ext": (
        *("base", "distances", "expressions", "memory", "entries", "locks", "rows", "keys"),
        *("memtable", "sstable", "wal", "iterators", "documents"),
    ),
    "lsmstate": (
        *("process", "schema", "store_base", "lsm", "memory_backend", "rocksdb_backend"),
        *("expiry", "remote", "tools", "ui", "cli"),
    ),
    "joins": (
        *("conditions", "plan", "routing", "routing/skew", "routing/ranges", "routing/documents"),
        "routing/scaling",
        "specs",
        *("local/parts", "local/aggregates", "local/inner", "local/changes", "local/rooted"),
        *("local/similarity", "local/timed", "local/theta", "local/documents"),
    ),
    "spark_integration": (
        *(
            "catalyst",
            "session",
            "columns",
            "metrics",
            "plan",
            "checkpoint",
            "tables",
            "skew",
            "state_reader",
        ),
        *("stateful_operator", "joins", "sql", "rescale", "demo"),
    ),
}
LAYERS = tuple(ORDER)

#: Faces re-export the public names of upper layers, hold no code, and are the one exception.
FACES = ("lsmstate/spark.py", "lsmstate/join.py")

#: Only these may import the package.
OWNERS = {"pyspark": "spark_integration/", "rocksdict": "lsmstate/rocksdb_backend/"}

CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))"
)


def sources(*suffixes: str, of: Iterable[str] = LAYERS) -> list[str]:
    found = [path for layer in of for path in (ROOT / layer).rglob("*") if path.is_file()]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.suffix in suffixes)


@cache
def place_of(name: str) -> str:
    """The file of one of our modules, below the layer it is of; "" for other modules."""
    parts = name.split(".")
    if parts[0] != "lsmstate":
        return ""
    parts = parts[1:] if len(parts) > 1 and parts[1] in LAYERS else parts
    for length in range(len(parts), 0, -1):
        stem = "/".join(parts[:length])
        for file in (f"{stem}.py", f"{stem}.pyx", f"{stem}.pxd", f"{stem}/__init__.py"):
            if (ROOT / file).is_file():
                return file
    return ""


def package_of(path: str) -> str:
    """ "" for a file in a layer's root."""
    return path.partition("/")[2].rpartition("/")[0]


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


@cache
def imports(path: str) -> set[str]:
    text = (ROOT / path).read_text()
    return imported_by_python(text) if path.endswith((".py", ".pyi")) else imported_by_cython(text)


def violations(path: str, names: set[str]) -> list[str]:
    layer, own = path.split("/")[0], package_of(path)
    found = []
    for name in sorted(names):
        top = name.split(".")[0]
        if top in LAYERS and top != "lsmstate":
            found.append(f"{path} imports {name}; installed it is lsmstate.{name}")
        if top in OWNERS and not path.startswith(OWNERS[top]) and path not in FACES:
            found.append(f"{path} imports {name}; only {OWNERS[top]}* may")
        place = place_of(name)
        if not place or path in FACES or place.endswith("__init__.py"):
            continue
        other = place.split("/")[0]
        if LAYERS.index(other) > LAYERS.index(layer):
            found.append(f"{path} imports {name} from the layer {other} above it")
        order, package = ORDER[layer], package_of(place)
        if other == layer and own and package and order.index(package) > order.index(own):
            found.append(f"{path} imports {name} from the package {package} above it")
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_downward(layer: str) -> None:
    files = sources(".py", ".pyi", ".pyx", ".pxd", of=(layer,))
    assert len(files) > 20
    assert [each for path in files for each in violations(path, imports(path))] == []


def edges(*, are_folders: bool) -> Iterator[tuple[str, str]]:
    """(a file or its folder, one that it imports); a layer's root files stand for themselves."""
    for path in sources(".py", ".pyx", ".pxd"):
        if path.endswith("__init__.py"):
            continue  # a package's face takes from everywhere below it
        for name in imports(path):
            place = place_of(name)
            ends = [Path(path), Path(place)]
            if not place or place.endswith("__init__.py") or path in FACES:
                continue
            if are_folders:
                ends = [end.parent if len(end.parts) > 2 else end for end in ends]
            else:
                ends = [end.with_suffix("") for end in ends]  # .pyx and .pxd are one module
            if ends[0] != ends[1]:
                yield ends[0].as_posix(), ends[1].as_posix()


@pytest.mark.parametrize("are_folders", [False, True], ids=["files", "folders"])
def test_nothing_imports_itself_by_way_of_others(are_folders: bool) -> None:
    graph = TopologicalSorter[str]()
    for importer, imported in edges(are_folders=are_folders):
        graph.add(importer, imported)
    try:
        graph.prepare()
    except CycleError as circle:
        pytest.fail(f"in a circle: {' <- '.join(circle.args[1])}")


def test_every_package_has_its_place() -> None:
    there = {(path.split("/")[0], package_of(path)) for path in sources(".py", ".pyx")}
    has_code = {
        (layer, package)
        for layer, package in there
        if package and any((ROOT / layer / package).glob("[!_]*.py*"))
    }
    assert has_code == {(layer, name) for layer, names in ORDER.items() for name in names}


def taken_from_the_jvm(text: str) -> set[str]:
    """PySpark's own attributes that hold objects of the JVM: used, or asked for by name."""
    nodes = list(ast.walk(ast.parse(text)))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return used & {"_jdf", "_jvm", "_jsc", "_jsparkSession", "_jreader", "_jwriter", "_jsq", "_jc"}


def test_one_module_takes_what_is_private_from_spark() -> None:
    takers = {path for path in sources(".py") if taken_from_the_jvm((ROOT / path).read_text())}
    assert takers == {"spark_integration/catalyst/catalyst.py"}


@pytest.mark.parametrize("path", FACES)
def test_a_face_holds_no_code(path: str) -> None:
    """Imports and names; at most a ``__getattr__`` that imports a name when it is first used, and
    a ``__dir__`` that lists the names."""
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            assert node.name in ("__getattr__", "__dir__")
        elif isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) in ("__all__", "_MODULES")
        elif isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"
        else:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or isinstance(node, ast.ImportFrom), ast.unparse(node)


def test_the_check_would_notice() -> None:
    def found(path: str, text: str) -> list[str]:
        return violations(path, imported_by_python(text))

    assert found("lsmstate/x.py", "from lsmstate.joins.specs.one_key import JoinSpec")
    assert found("joins/x.py", "def f():\n    import pyspark.sql")
    assert found("lsmstate/x.py", "import_module('rocksdict')")
    assert found("spark_integration/x.py", "from joins.specs.one_key import JoinSpec")
    assert found("joins/conditions/x.py", "from lsmstate.joins.specs.one_key import JoinSpec")
    assert violations("cython_ext/x.pyx", imported_by_cython("from lsmstate.errors cimport x"))
    assert violations("cython_ext/x.pyx", imported_by_cython("    import os, lsmstate.store"))
    assert not found("joins/x.py", "from lsmstate.store import Probe")
    assert not found("joins/specs/x.py", "from lsmstate.joins.conditions import predicate")
    assert not found("lsmstate/spark.py", "import lsmstate.spark_integration.joins.request")
    assert taken_from_the_jvm("df._jdf") == taken_from_the_jvm("hasattr(x, '_jdf')") == {"_jdf"}


def test_every_folder_is_a_package() -> None:
    """Setuptools finds packages by their ``__init__.py``: a folder without one is not installed."""
    folders = {Path(path).parent for path in sources(".py", ".pyx")}
    assert [str(f) for f in sorted(folders) if not (ROOT / f / "__init__.py").exists()] == []


def test_the_layers_are_inside_the_package() -> None:
    for layer in LAYERS[:1] + LAYERS[2:]:
        assert (ROOT / "lsmstate" / layer).resolve() == ROOT / layer


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
