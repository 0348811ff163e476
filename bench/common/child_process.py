"""A measured run in a process of its own, which may take only so long."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil


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
