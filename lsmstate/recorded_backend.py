"""The backend that a directory's state belongs to; another one would start empty beside it."""

import os
from typing import Final

from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.file_names import holds_standalone_store

#: As ``memory_backend.commit_files.SUFFIX`` and ``RocksStore.open`` have it.
_MEMORY_SUFFIX: Final = ".mem"
_ROCKS_DATABASE: Final = os.path.join("db", "CURRENT")


def check_recorded_backend(directory: str, backend: str) -> None:
    """Raise InvalidArgumentError if a directory holds a standalone store of another backend and
    none of this one. Only file names are looked at."""
    kept = _recorded_backends(directory)
    if kept and backend not in kept:
        raise InvalidArgumentError(
            f"backend={backend!r}: {directory} holds a state of backend={kept[0]!r}; open it with "
            "that one, or give another directory"
        )


def _recorded_backends(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        return []
    kept = ["lsm"] if holds_standalone_store(directory) else []
    if os.path.exists(os.path.join(directory, _ROCKS_DATABASE)):
        kept.append("rocksdb")
    if any(name.endswith(_MEMORY_SUFFIX) for name in os.listdir(directory)):
        kept.append("memory")
    return kept
