"""File systems by URL: those of pyarrow, or any that fsspec has.

    file://                      LocalFileSystem
    s3:// s3a:// s3n://          S3FileSystem      options: its arguments, such as region
    gs:// gcs://                 GcsFileSystem
    abfs:// abfss://             AzureFileSystem   abfs://container@account.dfs.core.windows.net/p
    hdfs:// viewfs://            HadoopFileSystem  (libhdfs and a JVM)
    anything else                fsspec, if it is installed; options: that file system's

- The query of a URL counts as options. User and password of an S3 URL are the keys.
- Options may hold secrets: no message shows their values.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lsmstate.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Other tools' names of a scheme.
_SAME_AS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "viewfs": "hdfs"}
_CLASSES = {
    "s3": "S3FileSystem",
    "gs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "hdfs": "HadoopFileSystem",
}
_LINE_END = "\n"
#: Shorter texts are not secrets, but parts of words.
_LEAST_SECRET = 4
_BOOLEANS = {"true": True, "false": False}
#: A small file is one request, and parts of a large one are not collected in memory.
_S3_DEFAULTS = {"background_writes": False, "allow_delayed_open": True}


def is_url(place: str) -> bool:
    """Test whether a place names a file system: ``s3://bucket/path`` does, ``/a/path`` does not."""
    return "://" in place


def resolve(url: str, options: Mapping[str, Any] | None = None) -> "tuple[FileSystem, str]":
    """Return the file system of a URL, and the path in it. No request is made, except that HDFS
    connects.

    Raises:
        InvalidArgumentError: There is no such file system here, or it does not accept these
            options.
    """
    parts = urlsplit(url)
    scheme = _SAME_AS.get(parts.scheme, parts.scheme)
    if scheme == "file":
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), unquote(parts.path)
    given = options
    if scheme in _CLASSES:
        query = {name: _BOOLEANS.get(text, text) for name, text in parse_qsl(parts.query)}
        given = {**query, **(options or {})}
    try:
        if scheme in _CLASSES:
            return _native(scheme, parts, given or {})
        return _fsspec(url, given or {})
    except (TypeError, ValueError, OSError) as error:  # HDFS: it is not there
        names = ", ".join(sorted(given or {})) or "none"
        said = str(error)
        shown = _without_values(said, given or {})
        raise InvalidArgumentError(
            f"{parts.scheme}://{parts.hostname or ''} cannot be used with the options {names}: "
            f"{shown.partition(_LINE_END)[0]}{_not_text(error, given or {})}"
        ) from (error if shown == said else None)


def _not_text(error: Exception, options: Mapping[str, Any]) -> str:
    """Return the end of a message about options that may be meant as text, if the file system
    expects another type."""
    names = [name for name, value in sorted(options.items()) if isinstance(value, int)]
    if not names or not isinstance(error, TypeError):
        return ""
    quoted = " ".join(f"'{name}=\"...\"'" for name in names)
    return (
        f"; these options are not text: {', '.join(names)}. To make them text give str, or on the "
        f"command line double quotes: --storage-option {quoted}"
    )


def _without_values(message: str, options: Mapping[str, Any]) -> str:
    """Remove option values from a message: some file systems repeat them, literally or as Python
    writes them."""
    texts = {text for value in _values(options) for text in (str(value), repr(value).strip("'\""))}
    # A value may contain a shorter one, whose rest would then remain.
    for text in sorted(texts, key=len, reverse=True):
        if len(text) >= _LEAST_SECRET:
            message = message.replace(text, "***")
    return message


def _values(options: Any) -> Iterator[Any]:
    """Yield the values at any depth, except the two words that are not secret."""
    if isinstance(options, Mapping):
        options = options.values()
    elif not isinstance(options, list | tuple):
        if not isinstance(options, bool | None):
            yield options
        return
    for value in options:
        yield from _values(value)


def _native(
    scheme: str, parts: SplitResult, options: Mapping[str, Any]
) -> "tuple[FileSystem, str]":
    try:
        kind = getattr(importlib.import_module("pyarrow.fs"), _CLASSES[scheme])
    except (AttributeError, ImportError) as error:
        raise InvalidArgumentError(
            f"this build of pyarrow has no {_CLASSES[scheme]}; install one that has, or use "
            "another file system"
        ) from error
    path = f"{parts.netloc.rpartition('@')[2]}{parts.path}".strip("/")
    if scheme == "s3":
        keys = {}
        if parts.username is not None and parts.password is not None:
            keys = {"access_key": unquote(parts.username), "secret_key": unquote(parts.password)}
        return kind(**{**_S3_DEFAULTS, **keys, **options}), path
    if scheme == "abfs" and parts.username is not None:
        account = {"account_name": (parts.hostname or "").partition(".")[0]}
        return kind(**{**account, **options}), f"{parts.username}{parts.path}".rstrip("/")
    if scheme == "hdfs":
        host = f"viewfs://{parts.netloc}" if parts.scheme == "viewfs" else parts.hostname
        return kind(**{"host": host or "default", "port": parts.port or 0, **options}), parts.path
    return kind(**options), path


def _fsspec(url: str, options: Mapping[str, Any]) -> "tuple[FileSystem, str]":
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    scheme = url.partition("://")[0]
    try:
        core = importlib.import_module("fsspec.core")
        found, path = core.url_to_fs(url, **options)
    except ImportError as error:
        raise InvalidArgumentError(
            f"pyarrow.fs has no file system for {scheme}://, and fsspec cannot help: {error}; "
            "install fsspec and the package that brings this file system"
        ) from error
    return PyFileSystem(FSSpecHandler(found)), str(path)
