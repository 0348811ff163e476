"""query.json: what a checkpoint was started with, and every later start must keep.

Written once, at the first start, beside the state: bucket count and ids, stream names and order,
columns, key types, condition, backend. Never rewritten. A later start adopts the buckets and
refuses any other difference, naming both values.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from lsmstate.errors import CorruptionError, FormatVersionError, InvalidArgumentError
from spark_integration.buckets import bucket_ids
from spark_integration.plan import FORMAT_VERSION, Wanted

FILE_NAME: Final = "query.json"
_LARGEST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Pinned:
    """The part of the pinned settings that is adopted rather than compared."""

    buckets: int
    partitions: int
    bucket_ids: tuple[int, ...]


def adopt_or_pin(
    root: str, wanted: Wanted, partitions: int, query_id: str, *, is_new: bool = True
) -> Pinned:
    """The settings of the state in ``root``; pins ``wanted`` if it has none yet.

    ``is_new`` says that the query may still have no state: its first micro-batch.
    InvalidArgumentError if ``wanted`` differs from what is pinned, if nothing is although the
    query is not new, or if ``root`` is not writable. Cost: one small read.
    """
    path = os.path.join(root, FILE_NAME)
    settings = _read(path)
    if settings is None and not is_new:
        # To begin with nothing here would miss rows in silence.
        raise InvalidArgumentError(
            f"the query has run before, but its state is not in {root}; name the state_dir it was "
            "started with, restore that directory, or start with a new checkpoint location"
        )
    if settings is None:
        buckets = wanted.buckets or wanted.default_buckets
        settings = {
            **wanted.settings,
            "buckets": buckets,
            "partitions": partitions,
            "bucket_ids": list(bucket_ids(buckets, partitions)),
            "query_id": query_id,
        }
        _create(path, settings)
        # Another task of the same micro-batch may have been first: what stands there counts.
        settings = _read(path) or settings
    _compare(path, settings, wanted, query_id)
    return Pinned(settings["buckets"], settings["partitions"], tuple(settings["bucket_ids"]))


def check_settings(root: str, wanted: Wanted) -> None:
    """InvalidArgumentError if the state in ``root``, if any, was pinned by another join."""
    path = os.path.join(root, FILE_NAME)
    settings = _read(path)
    if settings is not None:
        _compare_settings(path, settings, wanted)


def _compare(path: str, settings: dict[str, Any], wanted: Wanted, query_id: str) -> None:
    _compare_settings(path, settings, wanted)
    if settings["query_id"] != query_id:
        raise InvalidArgumentError(
            f"the state in {os.path.dirname(path)} belongs to query {settings['query_id']}, "
            f"this is query {query_id}; give each query a state_dir of its own, and an empty one "
            "to a query that starts anew"
        )


def _compare_settings(path: str, settings: dict[str, Any], wanted: Wanted) -> None:
    expected = dict(wanted.settings)
    if wanted.buckets is not None:
        expected["buckets"] = wanted.buckets
    for name, now in expected.items():
        was = settings.get(name)
        if was != now:
            raise InvalidArgumentError(
                f"this checkpoint was started with {name} = {_show(was)}, the query now has "
                f"{name} = {_show(now)} ({path}); start with what it had, or with a new "
                "checkpoint location"
            )


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(str, value)) + ")"
    return "nothing" if value is None else str(value)


def _create(path: str, settings: dict[str, Any]) -> None:
    """Write the file whole or not at all, and never over another's."""
    content = json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "sha256": _checksum(settings),
            "settings": settings,
        },
        indent=1,
    )
    root = os.path.dirname(path)
    try:
        os.makedirs(root, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".query-", dir=root)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(content)
            os.link(temporary, path)
        except FileExistsError:
            return
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise InvalidArgumentError(
            f"the state directory {root} cannot be written to ({error.strerror}); make it "
            "writable for the user Spark runs as, or choose another with state_dir"
        ) from error


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise InvalidArgumentError(
            f"{path} cannot be read ({error.strerror}); make the state directory readable and "
            "writable for the user Spark runs as"
        ) from error
    try:
        content = json.loads(raw)
        version, settings = content["format_version"], content["settings"]
        intact = version != FORMAT_VERSION or content["sha256"] == _checksum(settings)
    except (ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise CorruptionError(
            "the pinned settings are damaged; restore the file from a copy of the checkpoint", path
        )
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path} has format version {version}, this release reads version {FORMAT_VERSION}; "
            "run the query with the release that started it"
        )
    assert isinstance(settings, dict)
    return settings


def _checksum(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
