"""A measured run in a process of its own, which may take only so long."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
#: What Spark's workers import before they run anything.
_WORKERS_IMPORT = (
    "import lsmstate.spark_integration.daemon, lsmstate.spark_integration.joins.run_join, "
    "lsmstate.spark_integration.stateful_operator.body"
)


def spark_environment() -> dict[str, str]:
    """The environment of a process that runs Spark, with byte code for what its workers import.

    An ordinary installation has byte code. One without compiles all modules in each of the two
    daemons of Spark's workers, which is no cost of a join.
    """
    paths = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    code = {"PYTHONPYCACHEPREFIX": str(ROOT / ".run" / "bytecode")}
    environment = {**os.environ, **paths, **code}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", _WORKERS_IMPORT], env=environment, check=True)
    return environment


def ended_in_time(
    command: Sequence[str], most_seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[str, str] | None:
    """What the process printed on standard output and on standard error; None where it had not
    ended after ``most_seconds`` and was stopped, with all its descendants.

    RuntimeError, with the end of its standard error, where it failed.
    """
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said, errors = process.communicate(timeout=most_seconds)
        except subprocess.TimeoutExpired:
            # A JVM and Spark's workers have process groups of their own.
            with suppress(psutil.NoSuchProcess):
                for started in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):  # it died with its parent
                        started.kill()
            process.kill()
            return None
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {errors[-3000:]}")
    return said, errors
