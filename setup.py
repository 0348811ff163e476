"""Extensions and the debug switch; the metadata stands in pyproject.toml.

Blosc2's wheel is a build requirement only: its static library also holds LZ4, Zstandard and
XXH3, is linked in whole where it is used, and is not needed at run time. It is found by its
spec, never imported.

``LSMSTATE_DEBUG=1`` keeps assertions and bounds checks.

Builds guided by a profile, with GCC 11 and later (`make build` does both):
``LSMSTATE_PROFILE_RECORD=directory setup.py build`` puts extensions that count what runs in
``directory/lib``; when a process that imported them ends, their profiles are in ``directory``.
``LSMSTATE_PROFILE_USE=directory`` compiles the extensions that have a profile there with it, and
the others as ever. A profile fits as long as the directory keeps its path, of which GCC makes the
names of static functions; where a function has changed since, it is compiled without. Builds with
assertions have no part in it, other compilers neither.

A wheel holds to Python's stable ABI, so that one serves CPython 3.11 and every later one; since
whole batches cross from Python to C, that costs next to nothing (bench/README.md). Builds in the
tree are for the Python that builds them; free-threaded ones have no stable ABI: a wheel each.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
DEBUG = os.environ.get("LSMSTATE_DEBUG") == "1"
STABLE_ABI = "bdist_wheel" in sys.argv and not sysconfig.get_config_var("Py_GIL_DISABLED")
#: Directories of profiles: to be recorded, to be used.
RECORD = "" if DEBUG else os.environ.get("LSMSTATE_PROFILE_RECORD", "")
USE = "" if DEBUG else os.environ.get("LSMSTATE_PROFILE_USE", "")
#: Commands that compile nothing: neither compiler nor Cython is asked for.
ONLY_SOURCES = {"egg_info", "dist_info", "sdist"}


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


def compiler() -> list[str]:
    """The command that distutils will compile with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def require_compiler() -> None:
    """Say in one sentence what is missing, before distutils says it in forty lines."""
    command = compiler()[0]
    if shutil.which(command) is None:
        sys.exit(f"lsmstate: no C compiler ({command}); install one, e.g. apt-get install gcc")


def is_gcc() -> bool:
    """By its macros; clang claims to be GCC, too."""
    shown = subprocess.run(
        [*compiler(), "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True
    ).stdout
    return "#define __GNUC__ " in shown and "#define __clang__ " not in shown


def profile_directory() -> Path | None:
    """Where profiles are recorded or used; None where they are not."""
    if RECORD and USE:
        sys.exit("lsmstate: set LSMSTATE_PROFILE_RECORD or LSMSTATE_PROFILE_USE, not both")
    if not (RECORD or USE):
        return None
    if is_gcc():
        return Path(RECORD or USE).absolute()
    if RECORD:
        sys.exit(f"lsmstate: profiles are recorded with GCC only, not with {compiler()[0]}")
    print(f"lsmstate: profiles are of GCC; {compiler()[0]} compiles without", file=sys.stderr)
    return None


def profile_flags(directory: Path | None, module: str) -> list[str]:
    """How a module is compiled for its profile, or with it where there is one. GCC looks for
    ``module.gcda`` in the -dumpdir, and takes the functions of another one for others."""
    if directory is None:
        return []
    place = ["-dumpdir", f"{directory}{os.sep}"]
    if RECORD:
        return ["-fprofile-generate", "-fprofile-update=single", *place]
    if not (directory / f"{module}.gcda").exists():
        return []
    return [
        "-fprofile-use",
        # What the training does not run is not compiled for size.
        "-fprofile-partial-training",
        # Threads counted without locks.
        "-fprofile-correction",
        "-Wno-missing-profile",
        "-Wno-coverage-mismatch",
        *place,
    ]


def extensions() -> list[Extension]:
    require_compiler()
    blosc2 = blosc2_directory()
    macros = [] if DEBUG else [("CYTHON_WITHOUT_ASSERTIONS", "1"), ("NDEBUG", "1")]
    if STABLE_ABI:
        macros += [("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")]
    flags = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0" if RECORD else "-g1"]
    flags += ["-fvisibility=hidden", "-Wno-unreachable-code"]
    profiles = profile_directory()
    return [
        Extension(
            f"cython_ext.{source.stem}",
            [str(source.relative_to(HERE))],
            include_dirs=[str(blosc2 / "include")],
            extra_objects=[str(blosc2 / "lib" / "libblosc2.a")] if source.stem == "codec" else [],
            libraries=["m", "pthread"],
            define_macros=macros,
            py_limited_api=STABLE_ABI,
            extra_compile_args=[*flags, *profile_flags(profiles, source.stem)],
            extra_link_args=["-fprofile-generate"] if RECORD else [],
        )
        for source in sorted((HERE / "cython_ext").glob("*.pyx"))
    ]


def cythonized() -> list[Extension]:
    from Cython.Build import cythonize

    return cythonize(
        extensions(),
        nthreads=os.cpu_count() or 1,
        # Apart from the C of other builds: Cython looks at times, not at what was asked for.
        build_dir="build/debug" if DEBUG else None,
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "auto_pickle": False,
            "embedsignature": True,
        },
    )


def options() -> dict[str, dict[str, str]]:
    """Of commands, beneath those on the command line."""
    if RECORD:
        directory = Path(RECORD)
        return {"build": {"build_lib": f"{directory / 'lib'}", "build_temp": f"{directory}"}}
    if "editable_wheel" in sys.argv:
        # Where `build_ext --inplace` compiles and finds again what it has compiled. Else an
        # editable installation compiles all anew, one by one, in a place of its own.
        place = f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        return {"build_ext": {"build_lib": place}}
    return {"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {}


setup(
    ext_modules=[] if ONLY_SOURCES.intersection(sys.argv) else cythonized(),
    options=options(),
)
