"""Whether Spark's workers can run lsmstate, known before a query is built.

- A worker without lsmstate fails in its first task, a minute later and in hundreds of lines.
- Only workers on this machine can be asked. Those of a cluster and of Spark Connect are trusted.
"""

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark_integration.catalyst.catalyst import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Prints the version of a Python, and which packages it lacks. It loads none of them.
_QUESTION: Final = (
    "import sys; from importlib.util import find_spec; "
    "names = ('lsmstate', 'pyarrow', 'pandas'); "
    # A folder of that name is found as well, without a file of its own.
    "lacks = [n for n in names if getattr(find_spec(n), 'origin', None) is None]; "
    "print('%d.%d' % sys.version_info[:2], *lacks)"
)
_MOST_SECONDS: Final = 60
#: Pythons that can run lsmstate, with their paths.
_fit: set[tuple[str, str]] = set()


def check_worker_python(spark: "SparkSession") -> None:
    """Check that the session's workers can run lsmstate.

    Args:
        spark: The session.

    Raises:
        InvalidArgumentError: The workers' Python is on this machine and cannot run lsmstate.

    Cost:
        Nothing if the workers run this program's Python. Otherwise that Python is started, once
        it fits never again in the life of this process.
    """
    if not is_classic(spark) or not str(spark.sparkContext.master).startswith("local"):
        return
    context = spark.sparkContext
    python = context.pythonExec
    if _is_this(python):
        return
    paths = (context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    unfit = _unfit(python, os.pathsep.join(filter(None, paths)))
    if unfit:
        raise InvalidArgumentError(
            f"Spark's workers would run {python!r}, which {unfit}; set "
            f"PYSPARK_PYTHON={sys.executable} before the session starts, or let "
            "lsmstate.spark.configure(SparkSession.builder) set it"
        )


def _is_this(python: str) -> bool:
    """Whether it is the Python that runs this. Two environments may link to one program, so the
    folder counts too."""
    found = shutil.which(python)
    if not found or not sys.executable:
        return False
    here, there = (os.path.abspath(path) for path in (sys.executable, found))
    same_folder = os.path.dirname(here) == os.path.dirname(there)
    return same_folder and os.path.realpath(here) == os.path.realpath(there)


def _unfit(python: str, path: str) -> str:
    """Why a Python cannot run lsmstate; empty if it can. One that can is not asked again."""
    if (python, path) in _fit:
        return ""
    why = _asked(python, path)
    if not why:
        _fit.add((python, path))
    return why


def _asked(python: str, path: str) -> str:
    """Why a Python cannot run lsmstate; empty if it can, or if it does not answer in time."""
    if shutil.which(python) is None:
        return "is no program on this machine"
    # It is asked in this directory, which Spark's workers have in their path as well.
    environment = {**os.environ, "PYTHONPATH": path} if path else None
    try:
        asked = subprocess.run(
            [python, "-c", _QUESTION],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ""
    answer = asked.stdout.split()
    if asked.returncode != 0 or not answer:
        said = asked.stderr.strip().splitlines()
        return f"does not start ({said[-1] if said else f'exit status {asked.returncode}'})"
    version, *missing = answer
    own = "{}.{}".format(*sys.version_info)
    if version != own:
        return f"is Python {version} while this program runs Python {own}"
    return f"has no {', no '.join(missing)}" if missing else ""
