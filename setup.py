"""Extensions and the debug switch; the metadata stands in pyproject.toml.

Layers lie at the top level of the tree and are one package when installed: ``lsmstate`` holds a
link to each of the others, so ``joins/`` is ``lsmstate.joins`` for the compiler, for mypy and for
an editable installation alike. A wheel and a source distribution hold files instead of links.

Blosc2's wheel is a build requirement only: its static library also holds LZ4, Zstandard and
XXH3, is linked in whole where it is used, and is not needed at run time. It is found by its
spec, never imported.

``LSMSTATE_DEBUG=1`` keeps assertions and bounds checks.

A wheel holds to Python's stable ABI, so that one serves CPython 3.11 and every later one; since
whole batches cross from Python to C, that costs next to nothing. Builds in the tree are for the
Python that builds them; free-threaded ones have no stable ABI: a wheel each.

The README's links lead to files of the tree. Where it stands alone, as the description in the
metadata, there are no such files: the link's text stays, and the file is named behind it.

An editable installation is a finder of imports, and Spark looks for data sources in the folders of
the path. So the module that names ours is copied beside the finder.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build

HERE = Path(__file__).parent
EXTENSIONS = HERE / "lsmstate" / "cython_ext"
#: Cython's own code for typed memoryviews: compiled once instead of in every module that has one.
SHARED = "lsmstate.cython_ext._cyutility"
#: Modules whose code runs once a batch or once a file, not once a row. They are compiled with -O1,
#: which spares a seventh of the compiler's time and costs the store none that could be measured.
ONCE_A_BATCH = {
    *("_cyutility", "attribute_values", "budget", "file", "fp_tree", "key_ranges", "locks"),
    *("nested", "restore", "retraction_counts", "salvage", "scanner", "sst_check", "wal_record"),
}
DEBUG = os.environ.get("LSMSTATE_DEBUG") == "1"
#: Builds with assertions lie apart, so that each kind is compiled once: Cython and setuptools
#: look at times, not at what was asked for.
BUILD = "build/debug" if DEBUG else "build"
STABLE_ABI = "bdist_wheel" in sys.argv and not sysconfig.get_config_var("Py_GIL_DISABLED")
#: Commands that compile nothing: neither compiler nor Cython is asked for. The Makefile, too,
#: compiles by itself, on all cores, and installs without.
ONLY_SOURCES = {"egg_info", "dist_info", "sdist"}
#: A link of Markdown to a file, its text and its target.
TO_A_FILE = re.compile(r"\[([^]]+)\]\((?!https?://|#)([^)#\s]+)(?:#[^)\s]*)?\)")
COMPILES = not ONLY_SOURCES.intersection(sys.argv) and "LSMSTATE_NO_EXTENSIONS" not in os.environ


def description() -> str:
    """README.md as it can be read without the tree."""

    def named(link: re.Match[str]) -> str:
        text, path = link.groups()
        return text if text == path else f"{text} (`{path}`)"

    title, text = (HERE / "README.md").read_text(encoding="utf-8").split("\n", 1)
    where = "The files that this page names are in the source distribution."
    return f"{title}\n\n{where}\n{TO_A_FILE.sub(named, text)}"


def blosc2_directory() -> Path:
    """Where Blosc2's wheel keeps its headers and its static library."""
    spec = importlib.util.find_spec("blosc2")
    if spec is None or spec.origin is None:
        sys.exit("lsmstate: the build needs the package blosc2; run: pip install blosc2")
    directory = Path(spec.origin).parent
    if not (directory / "lib" / "libblosc2.a").exists():
        sys.exit(
            f"lsmstate: no static library in {directory / 'lib'}; "
            "install blosc2 4.5 or later from a wheel: pip install -U --only-binary :all: blosc2"
        )
    return directory


def require_compiler() -> None:
    """Say in one sentence what is missing, before distutils says it in forty lines."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(command) is None:
        sys.exit(f"lsmstate: no C compiler ({command}); install one, e.g. apt-get install gcc")


def extensions() -> list[Extension]:
    require_compiler()
    blosc2 = blosc2_directory()
    macros = [] if DEBUG else [("CYTHON_WITHOUT_ASSERTIONS", "1"), ("NDEBUG", "1")]
    if STABLE_ABI:
        macros += [("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")]

    def flags(name: str) -> list[str]:
        effort = "-O1" if name in ONCE_A_BATCH else "-O3"
        chosen = ["-O0", "-g", "-UNDEBUG"] if DEBUG else [effort, "-g0"]
        return [*chosen, "-fvisibility=hidden", "-Wno-unreachable-code"]

    # The largest first, so that all cores end at about the same time.
    sources = sorted(EXTENSIONS.rglob("*/*.pyx"), key=lambda path: -path.stat().st_size)
    compiled = [
        Extension(
            ".".join(source.relative_to(HERE).with_suffix("").parts),
            [str(source.relative_to(HERE))],
            include_dirs=[str(blosc2 / "include")],
            extra_objects=(
                [str(blosc2 / "lib" / "libblosc2.a")] if source.stem == "compression" else []
            ),
            libraries=["m", "pthread"],
            define_macros=macros,
            py_limited_api=STABLE_ABI,
            extra_compile_args=flags(source.stem),
        )
        for source in sources
    ]
    shared = Extension(
        SHARED,
        [f"{SHARED.replace('.', '/')}.c"],
        define_macros=macros,
        py_limited_api=STABLE_ABI,
        extra_compile_args=flags(SHARED.rpartition(".")[2]),
    )
    return [shared, *compiled]


def cythonized() -> list[Extension]:
    from Cython.Build import cythonize

    return cythonize(
        extensions(),
        nthreads=os.cpu_count() or 1,
        shared_utility_qualified_name=SHARED,
        build_dir=f"{BUILD}/cython",
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "auto_pickle": False,
            "embedsignature": True,
            "show_performance_hints": not DEBUG,
        },
    )


def options() -> dict[str, dict[str, str]]:
    """Of commands, beneath those on the command line."""
    found = {"build": {"build_base": BUILD}}
    return found | ({"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {})


class CopyDataSource(Command):
    """A step of the build, which does something in an editable installation only."""

    #: Setuptools sets it.
    editable_mode = False

    def initialize_options(self) -> None:
        """There are none."""

    def finalize_options(self) -> None:
        """There are none."""

    def run(self) -> None:
        if self.editable_mode:
            self.copy_file("pyspark_lsmstate.py", self.get_finalized_command("install").install_lib)


class Build(build):
    sub_commands = [*build.sub_commands, ("copy_data_source", None)]  # noqa: RUF012


setup(
    cmdclass={"build": Build, "copy_data_source": CopyDataSource},
    ext_modules=cythonized() if COMPILES else [],
    long_description=description(),
    long_description_content_type="text/markdown",
    options=options(),
)
