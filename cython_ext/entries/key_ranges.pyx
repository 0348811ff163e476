"""Ranges of stored keys, as range deletions need them: an immutable set of keys.

Each range goes from its low key on and ends below its high key. Adjacent ranges are joined, so a
key is found by binary search.
"""

from bisect import bisect_left, bisect_right

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from lsmstate.cython_ext.memory.budget cimport MEMTABLE, TABLES, Budget
from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare, shared_prefix


@cython.final
@cython.no_gc  # __dealloc__ needs the budget; it cannot be part of a cycle by itself
cdef class KeyRanges:
    """Ascending, disjoint ranges; they may be given in any order."""

    def __cinit__(self, items=(), Budget budget=None):
        self.bounds = NULL
        self.count = 0

    def __init__(self, items=(), Budget budget=None):
        """Make the ranges. `budget` is charged for them as part of a memtable."""
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
        """Return the same ranges, charged with the indexes of open tables."""
        cdef KeyRanges found = KeyRanges(self.items)
        found._charge(budget, TABLES)
        return found

    def joined(self, KeyRanges other not None) -> KeyRanges:
        """Return the union of both."""
        if self.count == 0 or other.count == 0:
            return self if other.count == 0 else other
        return KeyRanges(self.items + other.items)

    def contains(self, bytes key not None) -> bool:
        """Test whether the key lies in one of the ranges."""
        return self.covers(<const uint8_t*> <const char*> key, len(key))

    def contain_all(self, bytes least not None, bytes greatest not None) -> bool:
        """Test whether one range holds all keys from the least to the greatest, both included."""
        return any(low <= least and greatest < high for low, high in self.items)

    def part_of(self, bytes least not None, bytes greatest not None) -> float:
        """Estimate the part (0 to 1) of the keys from the least to the greatest that lies in the
        ranges.

        Keys are assumed to be spread evenly over the 8 bytes in which the two begin to differ. If
        the two belong to several streams, each stream is assumed to have as many keys, and only
        ranges that cover a whole stream count, since the limits of its keys are unknown.
        """
        cdef int64_t first = _stream_of(least), last = _stream_of(greatest), stream = first, reached
        cdef double covered = 0
        cdef Py_ssize_t place
        cdef bytes begin, end, low, high
        if first == last:
            return self._part_of_one(least, greatest)
        while stream <= last:
            begin = least if stream == first else stream.to_bytes(STREAM_BYTES, "big")
            end = greatest + b"\0" if stream == last else (stream + 1).to_bytes(STREAM_BYTES, "big")
            place = self._first_behind(begin)
            if place == self.count:
                break
            low, high = self.items[place]
            if low > begin:
                stream = max(stream + 1, _stream_of(low))
            elif high < end:
                stream += 1
            else:
                reached = last + 1 if high > greatest else _stream_of(high)
                covered += reached - stream
                stream = reached
        return covered / (last - first + 1)

    cdef Py_ssize_t _first_behind(self, bytes key) except -1:
        """Return the first range that ends after the key, and may hold it."""
        cdef Py_ssize_t place = bisect_right(self.items, (key, b""))
        return place - 1 if place and self.items[place - 1][1] > key else place

    cdef double _part_of_one(self, bytes least, bytes greatest) except -1:
        """Estimate ``part_of`` for keys of one stream."""
        cdef Py_ssize_t i = 2 * self._first_behind(least)
        cdef const uint8_t* key = greatest
        cdef size_t size = len(greatest), least_size = len(least)
        cdef const uint8_t* least_key = least
        cdef size_t shared = shared_prefix(least_key, least_size, key, size)
        # Integer differences: as floating-point numbers, positions near 2^63 would be rounded.
        cdef uint64_t begin = _place(least_key, least_size, shared), low
        cdef double all_keys = <double> (_place(key, size, shared) - begin) + 1, high
        cdef double covered = 0
        cdef Bound* bound = self.bounds
        while i < 2 * self.count and compare(bound[i].data, bound[i].size, key, size) <= 0:
            low, high = 0, all_keys
            if compare(bound[i].data, bound[i].size, least_key, least_size) > 0:
                low = _place(bound[i].data, bound[i].size, shared) - begin
            if compare(bound[i + 1].data, bound[i + 1].size, key, size) <= 0:
                high = <double> (_place(bound[i + 1].data, bound[i + 1].size, shared) - begin)
            covered += high - <double> low
            i += 2
        return covered / all_keys

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


cdef int64_t _stream_of(bytes key) except -1:
    """Return the number that a stored key begins with; missing bytes count as 0."""
    return int.from_bytes(key[:STREAM_BYTES].ljust(STREAM_BYTES, b"\0"), "big")


cdef uint64_t _place(const uint8_t* key, size_t size, size_t shared) noexcept nogil:
    """Return the 8 bytes after a prefix as a number; missing bytes count as 0."""
    cdef uint64_t found = 0
    cdef size_t i
    for i in range(shared, shared + 8):
        found = found << 8 | (key[i] if i < size else 0)
    return found


def _in_order(items) -> tuple:
    """Sort ranges, drop empty ones and join those that touch or overlap."""
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
