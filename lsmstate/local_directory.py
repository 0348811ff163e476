"""Checks of a directory that a user names."""

import os
from typing import Final

from lsmstate.errors import InvalidArgumentError

_NAME: Final = "name the directory of a standalone store, of a bucket, or the 'lsmstate' directory"


def directory_path(given: object) -> str:
    """Return the path as text; raise InvalidArgumentError if it is not a path, or a file."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise InvalidArgumentError(
            f"directory={given!r} is a {type(given).__name__}; give a path, as text or pathlib.Path"
        )
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidArgumentError(
            f"directory={path!r} is a file, not a directory; name a store's directory, or a new one"
        )
    return path


def check_is_there(directory: str) -> None:
    """Raise InvalidArgumentError unless the directory exists."""
    if not os.path.isdir(directory):
        what = "is a file, not a directory" if os.path.exists(directory) else "is not there"
        raise InvalidArgumentError(f"{directory} {what}; {_NAME} below a query's checkpoint")
