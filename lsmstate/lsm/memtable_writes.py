"""How each kind of write changes a memtable.

A write is one or several steps. Each step processes all keys in key order. A step gets the place to
continue from and returns the place reached; it stops early if the memtable is full.
"""

from collections.abc import Callable, Mapping

from lsmstate.cython_ext.memtable.memtable import Memtable
from lsmstate.cython_ext.memtable.memtable_ranges import delete_range
from lsmstate.lsm.wal import APPEND, DELETE, DELETE_RANGE, PUT, RETRACT, Write
from lsmstate.store_base.key_range import KeyRange

Step = Callable[[Memtable, Write, int], int]


def _append(memtable: Memtable, write: Write, place: int) -> int:
    assert write.rows is not None
    return memtable.append(write.keys, write.rows, write.sequence, place)


def _delete(memtable: Memtable, write: Write, place: int) -> int:
    return memtable.delete(write.keys, write.sequence, place)


def _delete_range(memtable: Memtable, write: Write, _: int) -> int:
    low, high = write.keys.to_pylist()
    stored = KeyRange(low or b"", high).in_stream(write.stream)
    assert stored.high is not None
    return int(delete_range(memtable, stored.low, stored.high, write.sequence))


def places_of(write: Write) -> int:
    """Return the number of places of each step: its keys, or the one range."""
    return 1 if write.kind == DELETE_RANGE else write.keys.n_valid


STEPS: Mapping[int, tuple[Step, ...]] = {
    APPEND: (_append,),
    DELETE: (_delete,),
    PUT: (_delete, _append),
    DELETE_RANGE: (_delete_range,),
    RETRACT: (_append,),
}

#: The kinds of writes by the names that users know.
KINDS: Mapping[str, int] = {
    "append": APPEND,
    "delete": DELETE,
    "put": PUT,
    "retract": RETRACT,
    "delete_range": DELETE_RANGE,
}
