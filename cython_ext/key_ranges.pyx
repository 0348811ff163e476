"""Ranges of stored keys, as deleting a range needs them: a value that says which keys it covers.

Each goes from its low key on and ends below its high key. Ranges that touch are one, so a key is
found by halving.
"""

from bisect import bisect_right

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc

from cython_ext.budget cimport MEMTABLE, TABLES, Budget
from cython_ext.coding cimport compare, shared_prefix


@cython.final
@cython.no_gc  # __dealloc__ needs the budget; it cannot be part of a cycle by itself
cdef class KeyRanges:
    """Ascending ranges, apart from one another; given in any order, they are brought into it."""

    def __cinit__(self, items=(), Budget budget=None):
        self.bounds = NULL
        self.count = 0

    def __init__(self, items=(), Budget budget=None):
        """`budget`: charged for them as part of a memtable."""
        cdef Py_ssize_t i
        cdef bytes bound
        self.items = _in_order(items)
        self.count = len(self.items)
        self.bounds = <Bound*> malloc((2 * self.count + 1) * sizeof(Bound))
        if self.bounds == NULL:
            raise MemoryError(f"no memory for {self.count} ranges")
        for i in range(2 * self.count):
            bound = self.items[i // 2][i % 2]
            self.bounds[i].data = <const uint8_t*> <const char*> bound
            self.bounds[i].size = len(bound)
        self.nbytes = sum([len(low) + len(high) + 128 for low, high in self.items])
        if budget is not None:
            self._charge(budget, MEMTABLE)

    def __dealloc__(self):
        free(self.bounds)
        if self.budget is not None:
            self.budget.release(self.component, self.nbytes)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other) -> bool:
        return isinstance(other, KeyRanges) and self.items == (<KeyRanges> other).items

    def __hash__(self) -> int:
        return hash(self.items)

    cdef void _charge(self, Budget budget, int component) noexcept:
        budget.charge(component, self.nbytes)
        self.budget = budget
        self.component = component

    def of_a_run(self, Budget budget not None) -> KeyRanges:
        """The same ranges, charged beside the indexes of open tables."""
        cdef KeyRanges found = KeyRanges(self.items)
        found._charge(budget, TABLES)
        return found

    def joined(self, KeyRanges other not None) -> KeyRanges:
        """What lies in the one or in the other."""
        return KeyRanges(self.items + other.items) if other.count else self

    def contains(self, bytes key not None) -> bool:
        """Whether the key lies in one of the ranges."""
        return self.covers(<const uint8_t*> <const char*> key, len(key))

    def contain_all(self, bytes least not None, bytes greatest not None) -> bool:
        """Whether one range holds all keys from the least to the greatest, both included."""
        return any(low <= least and greatest < high for low, high in self.items)

    def part_of(self, bytes least not None, bytes greatest not None) -> float:
        """About which part of the keys from the least to the greatest lies in the ranges, 0 to 1: as
        if keys were spread evenly over the 8 bytes in which those two begin to differ."""
        cdef size_t shared = shared_prefix(
            <const uint8_t*> <const char*> least, len(least),
            <const uint8_t*> <const char*> greatest, len(greatest),
        )
        cdef int64_t first = bisect_right(self.items, (least, b""))
        if first and self.items[first - 1][1] > least:
            first -= 1
        begin = _place(least, shared)
        size = _place(greatest, shared) + 1 - begin
        covered = 0
        for low, high in self.items[first:]:
            if low > greatest:
                break
            end = size if high > greatest else _place(high, shared) - begin
            covered += end - max(0, _place(low, shared) - begin if low > least else 0)
        return covered / size

    cdef bint covers(self, const uint8_t* key, size_t size) noexcept nogil:
        cdef Py_ssize_t first = 0, last = self.count, middle
        cdef Bound* bound
        while first < last:  # the number of ranges whose low key is not greater
            middle = (first + last) // 2
            bound = &self.bounds[2 * middle]
            if compare(bound.data, bound.size, key, size) <= 0:
                first = middle + 1
            else:
                last = middle
        if first == 0:
            return False
        bound = &self.bounds[2 * first - 1]
        return compare(key, size, bound.data, bound.size) < 0


def _place(bytes key, size_t shared):
    """What the 8 bytes behind a prefix are as a number; those that are not there are 0."""
    return int.from_bytes(key[shared:shared + 8].ljust(8, b"\0"), "big")


def _in_order(items) -> tuple:
    """Ascending, without what is empty, those that touch or overlap as one."""
    found = []
    reached = None
    for low, high in sorted(items):
        if low >= high:
            continue
        if reached is not None and low <= reached:
            low, last = found.pop()
            high = max(last, high)
        found.append((low, high))
        reached = high
    return tuple(found)
