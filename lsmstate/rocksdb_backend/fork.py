"""RocksDB and forks: its threads do not survive a fork, and whatever waits for them waits forever.

A forked child hangs when it closes or garbage-collects a database, an inherited one or its own
(seen with rocksdict). A child therefore keeps inherited databases forever, and opens none. It
should leave by ``os._exit`` or ``exec``, as children of multiprocessing and Spark do. At the end of
a whole interpreter, RocksDB's destructors in a child end with a segmentation fault.
"""

import ctypes
import os
import weakref
from typing import Protocol

from lsmstate.errors import InvalidArgumentError


class HoldsDatabase(Protocol):
    """A store with an open database."""

    def database_parts(self) -> list[object]:
        """Return the objects whose end would close the database."""
        ...


_stores: "weakref.WeakSet[HoldsDatabase]" = weakref.WeakSet()
#: Id of the first process that opened a database.
_owner: int | None = None


def check_fork() -> None:
    """Raise InvalidArgumentError in a process forked from one that had opened a database; call it
    before a database is opened."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    elif _owner != os.getpid():
        raise InvalidArgumentError(
            f"this process ({os.getpid()}) was forked from process {_owner}, which had opened "
            "RocksDB. RocksDB's threads do not survive a fork, and a store here would wait for "
            "them forever. Fork before the first store of backend 'rocksdb' is opened, or start "
            "processes by spawn"
        )


def watch(store: HoldsDatabase) -> None:
    """Keep the database of a store alive in forked children; call it once the database is open."""
    _stores.add(store)


def _keep_for_good() -> None:
    for store in list(_stores):
        for part in store.database_parts():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))


os.register_at_fork(after_in_child=_keep_for_good)
