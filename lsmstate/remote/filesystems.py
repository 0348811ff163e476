"""From a URL to the file system it names: pyarrow's own, or any that fsspec has.

    file://                      LocalFileSystem
    s3:// s3a:// s3n://          S3FileSystem      options: its arguments, such as region
    gs:// gcs://                 GcsFileSystem
    abfs:// abfss://             AzureFileSystem   abfs://container@account.dfs.core.windows.net/path
    hdfs:// viewfs://            HadoopFileSystem  (libhdfs and a JVM)
    anything else                fsspec, if it is installed; options: that file system's

The query of a URL counts as options, a user and password in one of S3 as the keys. Options may
hold secrets: no message shows their values.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lsmstate.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Names that other tools have for a scheme.
_SAME_AS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "viewfs": "hdfs"}
_CLASSES = {
    "s3": "S3FileSystem",
    "gs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "hdfs": "HadoopFileSystem",
}
_LINE_END = "\n"
#: Shorter texts are no secrets, and parts of words.
_LEAST_SECRET = 4
_BOOLEANS = {"true": True, "false": False}
#: A file is one request where it is small, and parts are not collected in memory where it is not.
_S3_DEFAULTS = {"background_writes": False, "allow_delayed_open": True}


def is_url(place: str) -> bool:
    """Whether it names a file system, as ``s3://bucket/path`` does and ``/a/path`` does not."""
    return "://" in place


def resolve(url: str, options: Mapping[str, Any] | None = None) -> "tuple[FileSystem, str]":
    """The file system and the path in it. InvalidArgumentError if there is no such file system
    here, or it does not take these options. Cost: no request is made (HDFS connects)."""
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
    """Which options may be meant as text, where the file system wants another type of one."""
    names = [name for name, value in sorted(options.items()) if isinstance(value, int)]
    if not names or not isinstance(error, TypeError):
        return ""
    quoted = " ".join(f"'{name}=\"...\"'" for name in names)
    return (
        f"; these options are not text: {', '.join(names)}. To make them text give str, or on the "
        f"command line double quotes: --storage-option {quoted}"
    )


def _without_values(message: str, options: Mapping[str, Any]) -> str:
    """Some file systems repeat what they were given, as it is or as Python writes it."""
    texts = {text for value in _values(options) for text in (str(value), repr(value).strip("'\""))}
    # A value may hold a shorter one, of which the rest would then stay.
    for text in sorted(texts, key=len, reverse=True):
        if len(text) >= _LEAST_SECRET:
            message = message.replace(text, "***")
    return message


def _values(options: Any) -> Iterator[Any]:
    """What stands in them at any depth, but the two words that are no secret."""
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
