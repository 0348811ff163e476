"""What each kind of write does to a memtable.

A write is one step or several, each over all its keys in key order. A step takes the place to go
on from and returns the place reached; it stops early where the memtable is full.
"""

from collections.abc import Callable, Mapping

from cython_ext.memtable import Memtable
from lsmstate.changelog import APPEND, DELETE, PUT, Write

Step = Callable[[Memtable, Write, int], int]


def _append(memtable: Memtable, write: Write, place: int) -> int:
    assert write.rows is not None
    return memtable.append(write.keys, write.rows, write.sequence, place)


def _delete(memtable: Memtable, write: Write, place: int) -> int:
    return memtable.delete(write.keys, write.sequence, place)


STEPS: Mapping[int, tuple[Step, ...]] = {
    APPEND: (_append,),
    DELETE: (_delete,),
    PUT: (_delete, _append),
}

#: As users name them.
KINDS: Mapping[str, int] = {"append": APPEND, "delete": DELETE, "put": PUT}
