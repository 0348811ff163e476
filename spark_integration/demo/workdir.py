"""The directory of a run. It is emptied before each run, but only if an earlier run made it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsmstate.errors import InvalidArgumentError

MARKER = ".lsmstate-run"


@contextmanager
def fresh_directory(directory: Path) -> Iterator[Path]:
    """Give ``directory`` empty but for its marker, locked until this process ends.

    Results stay there afterwards.

    Raises:
        InvalidArgumentError: The directory has other files, or another run uses it. Its content is
            left alone.
    """
    marker = directory / MARKER
    if directory.exists() and not marker.exists() and any(directory.iterdir()):
        raise InvalidArgumentError(
            f"{directory} is not empty and has no {MARKER}, so it is not of an earlier run; "
            "name another directory with --run"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with marker.open("a+") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidArgumentError(
                f"another run works in {directory}; wait for it or name another with --run"
            ) from error
        for entry in directory.iterdir():
            if entry.name == MARKER:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield directory
