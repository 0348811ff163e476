"""Opening a store of any backend.

A store is either an attempt's (private, opened at a commit pointer) or standalone (its directory
has one owner)."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from lsmstate.errors import InvalidArgumentError
from lsmstate.local_directory import check_is_there, directory_path
from lsmstate.option_names import names_checked
from lsmstate.options import DEFAULTS, Options, check_options
from lsmstate.recorded_backend import check_recorded_backend
from lsmstate.store import MultimapStore, StreamSchema
from lsmstate.store_base.checks import check_streams, nearest

if TYPE_CHECKING:
    from lsmstate.lsm.checkpoints import Checkpoint, Checkpoints
    from lsmstate.remote.bucket import DurableBucket
    from lsmstate.store_base.writes import Backend

#: ``lsm``: our own engine, which spills to disk under a memory cap. ``rocksdb``: the same on
#: RocksDB. ``memory``: hash tables that cannot spill.
BACKENDS = ("lsm", "rocksdb", "memory")


class StandaloneStore(MultimapStore, Protocol):
    """A standalone store of the backend ``lsm``; it adds checkpoints to the contract."""

    def checkpoint(self, name: str) -> "Checkpoint":
        """Make a named checkpoint: a durable state that later writes do not change."""
        ...

    @property
    def checkpoints(self) -> "Checkpoints":
        """Return the named checkpoints of the store."""
        ...

    def flush(self) -> None:
        """Write the memtable to a file."""
        ...

    def compact(self) -> None:
        """Merge the runs, and free the space of deleted rows."""
        ...


def open_attempt(
    directory: "str | os.PathLike[str] | DurableBucket",
    streams: Sequence[StreamSchema],
    *,
    backend: str = "lsm",
    pointer: str | None = None,
    batch_id: int,
    attempt_id: str,
    options: Options = DEFAULTS,
) -> MultimapStore:
    """Open the private store of a task attempt, at the state that a commit pointer names.

    ``commit`` writes new files with unique names and returns the new pointer. No file is renamed or
    rewritten. Several attempts may therefore run from one pointer at the same time. A pointer can
    be opened in any process as long as its files are kept. An attempt that is closed without a
    commit leaves nothing that matters.

    Args:
        directory: A local directory, or for the backend ``lsm`` a bucket of a ``StatePlace`` on a
            remote file system. There a commit sends its files first; after an OSError nothing is
            committed.
        streams: The streams of the store.
        backend: ``lsm``, ``rocksdb`` or ``memory``.
        pointer: A commit pointer; None: an empty store.
        batch_id: Number of the micro-batch.
        attempt_id: Name of the attempt, unique within the micro-batch.
        options: Memory and disk options.

    Returns:
        The store; use it in a ``with`` statement.

    Raises:
        InvalidArgumentError: An argument is invalid, or the state has other streams.
        CorruptionError: The files are not those that the pointer names.
    """
    check_options(options)
    backend_class = store_class(backend)
    if isinstance(directory, str | os.PathLike):
        directory = directory_path(directory)
    else:
        check_place(backend, directory.where)

    def opened(streams: Sequence[StreamSchema]) -> "Backend":
        store: Backend = backend_class.open_attempt(
            directory,
            streams,
            pointer=pointer,
            batch_id=batch_id,
            attempt_id=attempt_id,
            options=options,
        )
        return store

    return _with_expiry(streams, options, opened)


def check_place(backend: str, where: str) -> None:
    """Raise InvalidArgumentError unless a backend's attempts can keep state at a remote place.

    Only ``lsm`` commits single files that never change.
    """
    if backend != "lsm":
        raise InvalidArgumentError(
            f"backend={backend!r} keeps its state in local directories only, not in {where}; "
            "choose backend='lsm', or a local directory"
        )


def open_commit(
    directory: "str | os.PathLike[str] | DurableBucket",
    pointer: str,
    *,
    options: Options = DEFAULTS,
) -> MultimapStore:
    """Open a commit of an attempt of the backend ``lsm`` for reading.

    Others may continue from the same commit. It can be read as long as retention keeps it.

    Args:
        directory: Directory of the attempt's bucket.
        pointer: The commit pointer.
        options: Memory and disk options.

    Returns:
        A store that refuses writes; its streams are those it was written with.

    Raises:
        CorruptionError: The files are not those that the pointer names.
    """
    from lsmstate.lsm.store import LsmStore

    check_options(options)
    if isinstance(directory, str | os.PathLike):
        directory = directory_path(directory)
    return LsmStore.open_commit(directory, pointer, options=options)


@overload
def open_store(
    directory: str | os.PathLike[str],
    streams: Sequence[StreamSchema],
    *,
    backend: Literal["lsm"] = "lsm",
    options: Options = DEFAULTS,
) -> StandaloneStore: ...


@overload
def open_store(
    directory: str | os.PathLike[str],
    streams: Sequence[StreamSchema],
    *,
    backend: str,
    options: Options = DEFAULTS,
) -> MultimapStore: ...


@names_checked({"options": Options})
def open_store(
    directory: str | os.PathLike[str],
    streams: Sequence[StreamSchema],
    *,
    backend: str = "lsm",
    options: Options = DEFAULTS,
) -> MultimapStore:
    """Open or create a standalone store, which one process owns, at its newest state.

    The pointers that its commits return only serve as names in messages: the directory holds one
    state. The backend ``lsm`` adds named checkpoints.

    Args:
        directory: A local directory; it is created if necessary.
        streams: The streams of the store, the same at every opening.
        backend: ``lsm``, ``rocksdb`` or ``memory``.
        options: Memory and disk options.

    Returns:
        The store; use it in a ``with`` statement.

    Raises:
        StoreLockedError: Another process has the store open.
        InvalidArgumentError: The state belongs to another backend or has other streams, or the
            directory is a file; or there is no such option.

    Example:
        ```python
        import pyarrow as pa
        from lsmstate import StreamSchema, open_store

        orders = StreamSchema(
            "orders", pa.schema([("id", pa.int64())]), pa.schema([("amount", pa.int64())])
        )
        with open_store("orders-state", [orders]) as store:
            rows = pa.RecordBatch.from_pylist([{"amount": 3}], schema=orders.rows)
            keys = pa.RecordBatch.from_pylist([{"id": 7}], schema=orders.key)
            store.append("orders", rows, keys)
            store.commit()
            print(store.get("orders", 7).to_pylist())
        ```
    """
    check_options(options)
    backend_class = store_class(backend)
    place = directory_path(directory)
    check_recorded_backend(place, backend)

    def opened(streams: Sequence[StreamSchema]) -> "Backend":
        store: Backend = backend_class.open(place, streams, options=options)
        return store

    return _with_expiry(streams, options, opened)


def open_checkpoint(
    directory: str | os.PathLike[str],
    name: str,
    *,
    streams: Sequence[StreamSchema] | None = None,
    options: Options = DEFAULTS,
) -> MultimapStore:
    """Open a named checkpoint of a standalone store of the backend ``lsm`` for reading.

    The store itself may be open elsewhere. The checkpoint cannot be deleted while it is open.

    Args:
        directory: Directory of the store.
        name: Name of the checkpoint.
        streams: The streams it was written with. They are known without this argument, unless one
            of them has an expiry.
        options: Memory and disk options.

    Returns:
        A store that refuses writes; use it in a ``with`` statement.

    Raises:
        InvalidArgumentError: There is no checkpoint of that name, it has other streams, or streams
            with an expiry were not given.
    """
    from lsmstate.lsm.store import LsmStore
    from lsmstate.store_base.slots import LANES

    check_options(options)
    place = directory_path(directory)
    check_is_there(place)

    def opened(asked: Sequence[StreamSchema]) -> "Backend":
        return LsmStore.open_checkpoint(place, name, asked, options=options)

    if streams is not None:
        return _with_expiry(streams, options, opened, is_reader=True)
    store = LsmStore.open_checkpoint(place, name, options=options)
    if LANES.name not in store.streams:
        return store
    store.close()
    raise InvalidArgumentError(
        f"checkpoint {name!r} of {place} has a stream with an expiry; give the streams= that the "
        "store was made with"
    )


def check_backend(backend: str) -> None:
    """Raise InvalidArgumentError, with the nearest valid name, for an unknown backend."""
    if backend not in BACKENDS:
        raise InvalidArgumentError(f"backend={backend!r} is unknown{nearest(backend, BACKENDS)}")


def _with_expiry(
    streams: Sequence[StreamSchema],
    options: Options,
    opened: Callable[[Sequence[StreamSchema]], "Backend"],
    *,
    is_reader: bool = False,
) -> MultimapStore:
    """Open the store, and wrap it only if a stream has an expiry."""
    check_streams(streams)
    if all(stream.expiry is None for stream in streams):
        return opened(streams)
    from lsmstate.expiry.store import ExpiringStore

    return ExpiringStore(streams, options, opened, is_reader=is_reader)


def store_class(backend: str) -> Any:
    """Import and return the class of a backend; rocksdict is an optional dependency."""
    check_backend(backend)
    if backend == "memory":
        from lsmstate.memory_backend.store import MemoryStore

        return MemoryStore
    if backend == "rocksdb":
        try:
            from lsmstate.rocksdb_backend.store import RocksStore
        except ModuleNotFoundError as error:
            if error.name != "rocksdict":
                raise
            raise InvalidArgumentError(
                "backend='rocksdb' needs the package rocksdict; "
                "run: pip install 'lsmstate[rocksdb]'"
            ) from error
        return RocksStore
    from lsmstate.lsm.store import LsmStore

    return LsmStore
