"""RocksDB over a fork: its threads stay behind, and whatever waits for them waits for ever.

Seen with rocksdict: a forked child hangs as it closes or garbage-collects a database, one it
inherited or one of its own. So a child keeps what it inherited for good, and opens none. It should
leave by ``os._exit`` or ``exec``, as those of multiprocessing and Spark do: at the end of a whole
interpreter RocksDB's own destructors, in a child, end with a segmentation fault.
"""

import ctypes
import os
import weakref
from typing import Protocol

from lsmstate.errors import InvalidArgumentError


class HoldsDatabase(Protocol):
    """A store with a database open."""

    def database_parts(self) -> list[object]:
        """The objects whose end would close the database."""
        ...


_stores: "weakref.WeakSet[HoldsDatabase]" = weakref.WeakSet()
#: The process that opened a database first.
_owner: int | None = None


def check_fork() -> None:
    """Call before a database is opened. InvalidArgumentError in a process forked from one that had
    opened any."""
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
    """Call once a store's database is open."""
    _stores.add(store)


def _keep_for_good() -> None:
    for store in list(_stores):
        for part in store.database_parts():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))


os.register_at_fork(after_in_child=_keep_for_good)
