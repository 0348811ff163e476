"""Checks of a directory that a user names."""

import os
import re
from typing import Final

from lsmstate.errors import InvalidArgumentError

_NAME: Final = "name the directory of a standalone store, of a bucket, or the 'lsmstate' directory"


#: ``s3://``, and what pathlib.Path makes of it. One letter is a drive.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def directory_path(given: object, name: str = "directory") -> str:
    """Return the path as text; raise InvalidArgumentError if it is not a local path, or a file.

    ``name`` is the caller's word for the argument.
    """
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise InvalidArgumentError(
            f"{name}={given!r} is a {type(given).__name__}; give a path, as text or pathlib.Path"
        )
    if not path or "\0" in path:
        raise InvalidArgumentError(f"{name}={path!r} is no path; name a local directory")
    if _URL.match(path):
        raise InvalidArgumentError(
            f"{name}={path!r} is a URL, but the state lies in a local directory; give a local "
            "path, and copy the state to a URL with lsmstate.export"
        )
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidArgumentError(
            f"{name}={path!r} is a file, not a directory; name a store's directory, or a new one"
        )
    return path


def check_is_there(directory: str) -> None:
    """Raise InvalidArgumentError unless the directory exists."""
    if not os.path.isdir(directory):
        what = "is a file, not a directory" if os.path.exists(directory) else "is not there"
        raise InvalidArgumentError(f"{directory} {what}; {_NAME} below a query's checkpoint")
