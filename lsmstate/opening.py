"""The two ways to own a store, for every backend."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from lsmstate.errors import InvalidArgumentError
from lsmstate.local_directory import check_is_there, directory_path
from lsmstate.options import DEFAULTS, Options, check_options
from lsmstate.recorded_backend import check_kept_backend
from lsmstate.store import MultimapStore, StreamSchema
from lsmstate.store_base.checks import check_streams, nearest

if TYPE_CHECKING:
    from lsmstate.lsm.checkpoints import Checkpoint, Checkpoints
    from lsmstate.remote.bucket import DurableBucket
    from lsmstate.store_base.writes import Backend

#: ``lsm``: ours, spills to disk under a memory cap. ``rocksdb``: the same on RocksDB.
#: ``memory``: hash tables, no spilling.
BACKENDS = ("lsm", "rocksdb", "memory")


class StandaloneStore(MultimapStore, Protocol):
    """What a standalone store of the backend ``lsm`` has beside the contract; see LsmStore."""

    def checkpoint(self, name: str) -> "Checkpoint": ...

    @property
    def checkpoints(self) -> "Checkpoints": ...

    def flush(self) -> None: ...

    def compact(self) -> None: ...


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
    """A task attempt's private store, at the state a commit pointer names; None: empty.

    ``commit`` writes new files with unique names below ``directory`` and returns the new pointer.
    Nothing is renamed over or rewritten: attempts may run from one pointer at the same time, and
    any pointer whose files are kept opens later, in any process. Closed without a commit, the
    attempt leaves nothing that matters. ``directory`` is a local one, or, for the backend ``lsm``,
    that of a ``StatePlace`` elsewhere; there a commit sends its files first (OSError: nothing was
    committed).
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
    """InvalidArgumentError unless a backend's attempts can keep their state away from the machine's
    own directories: only ``lsm`` commits single files that never change."""
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
    """What an attempt of the backend ``lsm`` committed, to be read only, whoever works on from
    there. Its streams are those it was written with. It can be read as long as retention keeps
    the commit. CorruptionError if its files are not what the pointer says."""
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


def open_store(
    directory: str | os.PathLike[str],
    streams: Sequence[StreamSchema],
    *,
    backend: str = "lsm",
    options: Options = DEFAULTS,
) -> MultimapStore:
    """A store that one process owns (StoreLockedError otherwise); finds what was committed.

    The pointers of its commits serve as names in messages only: the directory holds one state.
    That of the backend ``lsm`` has named checkpoints (``checkpoint``) beside the contract.
    InvalidArgumentError if that state is of another backend, or has other streams, or the directory
    is a file.
    """
    check_options(options)
    backend_class = store_class(backend)
    place = directory_path(directory)
    check_kept_backend(place, backend)

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
    """A named checkpoint of a standalone store of the backend ``lsm``, to be read only, whoever
    has the store itself open. It cannot be deleted until this is closed.

    ``streams`` are those it was written with; they are known without being given, unless one has
    an expiry, of which a state does not hold the rule that keeps rows. InvalidArgumentError if
    they are other ones, or there is no checkpoint of that name."""
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
        f"checkpoint {name!r} of {place} is of a store with an expiry; give the streams that "
        "the store was made with"
    )


def check_backend(backend: str) -> None:
    """InvalidArgumentError, with the nearest valid name, for an unknown backend."""
    if backend not in BACKENDS:
        raise InvalidArgumentError(f"backend={backend!r} is unknown{nearest(backend, BACKENDS)}")


def _with_expiry(
    streams: Sequence[StreamSchema],
    options: Options,
    opened: Callable[[Sequence[StreamSchema]], "Backend"],
    *,
    is_reader: bool = False,
) -> MultimapStore:
    """The store itself where no stream has an expiry: then it costs nothing."""
    check_streams(streams)
    if all(stream.expiry is None for stream in streams):
        return opened(streams)
    from lsmstate.expiry.store import ExpiringStore

    return ExpiringStore(streams, options, opened, is_reader=is_reader)


def store_class(backend: str) -> Any:
    """Imported when it is asked for: rocksdict is an optional dependency."""
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
