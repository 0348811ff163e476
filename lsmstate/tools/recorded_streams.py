"""Which streams the state in a directory has, for whoever derives them from a choice made once."""

import os
from collections.abc import Mapping

from lsmstate.lsm.table_cache import table_cache
from lsmstate.opening import store_class
from lsmstate.process.memory_budget import process_memory
from lsmstate.recorded_backend import check_kept_backend
from lsmstate.store import StreamSchema


def kept_streams(directory: str, *, backend: str = "lsm") -> Mapping[str, StreamSchema] | None:
    """The streams that ``open_store`` was given for the state it finds in a directory, in their
    order; None if it would find none. Changes nothing; call it while nobody has the store open.
    Cost: some small reads. InvalidArgumentError if the state is of another backend, CorruptionError
    if its streams cannot be read."""
    store_class(backend)  # whose package may be missing
    check_kept_backend(directory, backend)
    if not os.path.isdir(directory):
        return None
    if backend == "memory":
        return _of_memory(directory)
    if backend == "rocksdb":
        from lsmstate.rocksdb_backend import streams as rocks_streams

        return rocks_streams.kept_streams(os.path.join(directory, "db"))
    return _of_lsm(directory)


def _of_lsm(directory: str) -> Mapping[str, StreamSchema] | None:
    from lsmstate.lsm.ownership import newest_pointer
    from lsmstate.lsm.recovery import read_commit

    pointer, _ = newest_pointer(directory)
    if pointer is None:
        return None
    return read_commit(table_cache(process_memory()), directory, pointer).streams


def _of_memory(directory: str) -> Mapping[str, StreamSchema] | None:
    from lsmstate.memory_backend.commit_files import LogFile, newest_pointer

    _, pointer = newest_pointer(directory)
    return None if pointer is None else LogFile(directory, pointer).streams
