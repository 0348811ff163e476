"""The streams that the state in a directory has, for callers that derive them from an earlier
choice."""

import os
from collections.abc import Mapping

from lsmstate.lsm.table_cache import table_cache
from lsmstate.opening import store_class
from lsmstate.process.memory_budget import process_memory
from lsmstate.recorded_backend import check_recorded_backend
from lsmstate.store import StreamSchema


def kept_streams(directory: str, *, backend: str = "lsm") -> Mapping[str, StreamSchema] | None:
    """Return the streams of the state that ``open_store`` would find in a directory, in their
    order; None if there is no state. Nothing is changed; no process may have the store open.

    Raises:
        InvalidArgumentError: The state belongs to another backend.
        CorruptionError: The streams cannot be read.

    Cost:
        A few small reads.
    """
    store_class(backend)  # raises if its package is missing
    check_recorded_backend(directory, backend)
    if not os.path.isdir(directory):
        return None
    if backend == "memory":
        return _of_memory(directory)
    if backend == "rocksdb":
        from lsmstate.rocksdb_backend import streams as rocks_streams

        return rocks_streams.kept_streams(os.path.join(directory, "db"))
    return _of_lsm(directory)


def _of_lsm(directory: str) -> Mapping[str, StreamSchema] | None:
    from lsmstate.lsm.manifest_files import newest_pointer
    from lsmstate.lsm.recovery import read_commit

    pointer, _ = newest_pointer(directory)
    if pointer is None:
        return None
    tables = table_cache(process_memory())
    try:
        return read_commit(tables, directory, pointer).streams
    finally:
        tables.close_all(directory)


def _of_memory(directory: str) -> Mapping[str, StreamSchema] | None:
    from lsmstate.memory_backend.commit_files import LogFile, newest_pointer

    _, pointer = newest_pointer(directory)
    return None if pointer is None else LogFile(directory, pointer).streams
