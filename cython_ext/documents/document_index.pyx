"""Which stored documents match another one: they share an attribute, and agree on all they share.

Every index has the interface of ``DocumentIndex``, and gives the same documents:

- ``PostingLists`` and ``Bitmaps`` (``posting_lists``): the documents of each value.
- ``FpTree`` (``fp_tree``): documents as paths of a prefix tree.
- ``ShapeIndex`` (``shape_index``): documents of one set of attributes together.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from lsmstate.cython_ext.base.coding cimport Buffer, put_bytes, put_u64, release, reserve
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError


cdef class DocumentIndex:
    """Stored documents, and the ones among them that match another."""

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        self.documents = Documents(values)
        self.at_least = max(1, at_least)
        memset(&self.found, 0, sizeof(Buffer))
        memset(&self.cell_ends, 0, sizeof(Buffer))
        memset(&self.cells, 0, sizeof(Buffer))

    def __init__(self, values, at_least=1):
        pass

    def __dealloc__(self):
        release(&self.found)
        release(&self.cell_ends)
        release(&self.cells)

    def __len__(self):
        return self.documents.count()

    @property
    def nbytes(self):
        """Bytes of the index, without the values."""
        return (
            self.documents.nbytes + self.found.capacity + self.cell_ends.capacity
            + self.cells.capacity + self.own_bytes()
        )

    def cells_kept(self):
        """Return the cells of the documents, as ``append`` took them; None: there are none."""
        if self.cell_ends.size == 0:
            return None
        return numbers_of(&self.cell_ends), numbers_of(&self.cells)

    def append(self, Documents others not None, const int64_t[::1] places, cells=None):
        """Store some documents. ``cells``: per document an array of the smaller buckets that it
        lies in too, as ends and numbers; None: in none."""
        cdef Py_ssize_t first = self.documents.count()
        cdef Py_ssize_t i
        self.documents.append(others, places)
        for i in range(first, self.documents.count()):
            self.add(i)
        if cells is not None:
            append_cells(&self.cell_ends, &self.cells, cells, places.shape[0])

    def pairs(
        self,
        Documents others not None,
        const int64_t[::1] places,
        const int64_t[::1] limits,
        Py_ssize_t first,
        int64_t skip,
        int64_t most,
        cells=None,
    ):
        """Find the stored documents that match some others.

        Args:
            others: Documents of the same values.
            places: Which of them.
            limits: Beside each, the place before which stored documents count.
            first: Position among ``places`` to begin with.
            skip: How many matches of it were given before.
            most: Most matches to give.
            cells: Of all ``others``, as in ``append``. A pair with a common cell is not given.

        Returns:
            Positions among ``places``; beside them places of stored documents; and where to go on:
            ``first`` and ``skip`` of the next call.

        Cost:
            A document whose matches are cut is looked up again by the next call.
        """
        cdef Py_ssize_t position = first
        cdef int64_t room = most
        cdef int64_t count, i
        cdef Buffer left
        cdef Buffer right
        cdef int64_t number
        cdef Buffer ends
        cdef Buffer numbers
        if others.values is not self.documents.values:
            raise InvalidArgumentError("documents of other values; read them with these")
        if limits.shape[0] != places.shape[0]:
            raise InvalidArgumentError(f"{places.shape[0]} places, {limits.shape[0]} limits")
        memset(&left, 0, sizeof(Buffer))
        memset(&right, 0, sizeof(Buffer))
        memset(&ends, 0, sizeof(Buffer))
        memset(&numbers, 0, sizeof(Buffer))
        try:
            if cells is not None:
                append_cells(&ends, &numbers, cells, others.count())
            while position < places.shape[0] and room > 0:
                if not 0 <= places[position] < others.count():
                    raise IndexError(f"document {places[position]} of {others.count()}")
                self.found.size = 0
                self.find(
                    others, places[position], min(limits[position], self.documents.count())
                )
                if cells is not None:
                    self.keep_own(&ends, &numbers, places[position])
                count = self.found.size // 4 - skip
                if count > 0:
                    count = min(count, room)
                    reserve(&left, 8 * count)
                    reserve(&right, 8 * count)
                    for i in range(count):
                        number = position
                        put_u64(&left, number)
                        number = (<uint32_t*> self.found.data)[skip + i]
                        put_u64(&right, number)
                    room -= count
                if room > 0 or skip + count == <int64_t> self.found.size // 4:
                    position += 1
                    skip = 0
                else:
                    skip += count
            return numbers_of(&left), numbers_of(&right), position, skip
        finally:
            release(&left)
            release(&right)
            release(&ends)
            release(&numbers)

    cdef int keep_own(self, const Buffer* ends, const Buffer* numbers, Py_ssize_t place) except -1:
        """Leave out what has a smaller cell in common with a document."""
        cdef uint32_t* found = <uint32_t*> self.found.data
        cdef size_t i, kept = 0
        for i in range(self.found.size // 4):
            if not has_common(ends, numbers, place, &self.cell_ends, &self.cells, found[i]):
                found[kept] = found[i]
                kept += 1
        self.found.size = 4 * kept
        return 0

    cdef size_t own_bytes(self) noexcept:
        return 0

    cdef int add(self, Py_ssize_t place) except -1:
        """Index a stored document."""
        return 0

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        """Put the matches of a document before a place into ``found``."""
        return 0

    cdef bint matches(self, const uint64_t* pairs, uint32_t size, uint32_t document) noexcept nogil:
        """Whether a document, as pairs, matches a stored one."""
        cdef uint32_t own_size
        cdef const uint64_t* own = self.documents.pairs_of(document, &own_size)
        return match(pairs, size, own, own_size, self.at_least)


def matching(
    Documents first not None,
    const int64_t[::1] first_places,
    Documents second not None,
    const int64_t[::1] second_places,
    int at_least=1,
    first_cells=None,
    second_cells=None,
):
    """Return for each pair of documents whether they match, and have no cell in common. Cells are
    those of all documents, as in ``DocumentIndex.append``; None: they have none."""
    cdef Py_ssize_t i, n = first_places.shape[0]
    cdef bint has_cells = first_cells is not None
    cdef Buffer ends, cells, other_ends, other_cells
    cdef uint32_t size, other_size
    cdef const uint64_t* pairs
    cdef const uint64_t* others
    if first.values is not second.values or second_places.shape[0] != n:
        raise InvalidArgumentError("pairs of documents of other values, or of another number")
    found = np.zeros(n, np.bool_)
    cdef uint8_t[::1] into = found.view(np.uint8)
    memset(&ends, 0, sizeof(Buffer))
    memset(&cells, 0, sizeof(Buffer))
    memset(&other_ends, 0, sizeof(Buffer))
    memset(&other_cells, 0, sizeof(Buffer))
    try:
        if has_cells:
            append_cells(&ends, &cells, first_cells, first.count())
            append_cells(&other_ends, &other_cells, second_cells, second.count())
        for i in range(n):
            if not (
                0 <= first_places[i] < first.count() and 0 <= second_places[i] < second.count()
            ):
                raise IndexError(f"documents {first_places[i]} and {second_places[i]}")
            pairs = first.pairs_of(first_places[i], &size)
            others = second.pairs_of(second_places[i], &other_size)
            into[i] = match(pairs, size, others, other_size, max(1, at_least)) and not (
                has_cells
                and has_common(
                    &ends, &cells, first_places[i], &other_ends, &other_cells, second_places[i]
                )
            )
    finally:
        release(&ends)
        release(&cells)
        release(&other_ends)
        release(&other_cells)
    return found


cdef bint match(
    const uint64_t* a, uint32_t a_size, const uint64_t* b, uint32_t b_size, uint32_t at_least
) noexcept nogil:
    """Whether two documents share attributes, and agree on all they share."""
    cdef uint32_t i = 0, j = 0, shared = 0
    cdef uint64_t x, y
    while i < a_size and j < b_size:
        x = a[i] >> 32
        y = b[j] >> 32
        if x == y:
            if a[i] != b[j]:
                return False
            shared += 1
        i += x <= y
        j += y <= x
    return shared >= at_least


cdef int fill_to(Buffer* buffer, size_t size) except -1:
    """Make a buffer at least so large, its new bytes zero."""
    if buffer.size < size:
        reserve(buffer, size - buffer.size)
        memset(buffer.data + buffer.size, 0, size - buffer.size)
        buffer.size = size
    return 0


cdef int64_t put_number(List* list_, uint32_t number) except -1:
    """Append to a list. Return by how many bytes it grew."""
    cdef uint32_t capacity
    cdef void* at
    cdef int64_t grown = 0
    if list_.size == list_.capacity:
        capacity = 2 if list_.capacity == 0 else list_.capacity + list_.capacity // 2 + 1
        at = realloc(list_.at, 4 * <size_t> capacity)
        if at == NULL:
            raise MemoryError(f"cannot allocate {4 * capacity} bytes")
        grown = 4 * <int64_t> (capacity - list_.capacity)
        list_.at = <uint32_t*> at
        list_.capacity = capacity
    list_.at[list_.size] = number
    list_.size += 1
    return grown


cdef int append_cells(Buffer* ends, Buffer* numbers, cells, Py_ssize_t count) except -1:
    """Append lists of cells: their ends and their numbers, ascending in each list."""
    cdef const int64_t[::1] end = cells[0]
    cdef const int64_t[::1] number = cells[1]
    cdef int64_t base = numbers.size // 8
    cdef int64_t before = 0, each
    cdef Py_ssize_t i
    if end.shape[0] != count or (count and end[count - 1] != number.shape[0]):
        raise InvalidArgumentError(f"cells of {end.shape[0]} documents, of {count}")
    for i in range(count):
        if end[i] < before:
            raise InvalidArgumentError(f"cells of document {i} end before they begin")
        before = end[i]
        each = base + end[i]
        put_bytes(ends, &each, 8)
    if number.shape[0]:
        put_bytes(numbers, &number[0], 8 * number.shape[0])
    return 0


cdef bint has_common(
    const Buffer* a_ends, const Buffer* a, Py_ssize_t i, const Buffer* b_ends, const Buffer* b,
    Py_ssize_t j,
) noexcept nogil:
    """Whether two ascending lists of cells have one in common."""
    cdef const int64_t* x_ends = <const int64_t*> a_ends.data
    cdef const int64_t* y_ends = <const int64_t*> b_ends.data
    cdef const int64_t* x_cells = <const int64_t*> a.data
    cdef const int64_t* y_cells = <const int64_t*> b.data
    cdef int64_t x = x_ends[i - 1] if i else 0
    cdef int64_t y = y_ends[j - 1] if j else 0
    cdef int64_t left, right
    while x < x_ends[i] and y < y_ends[j]:
        left = x_cells[x]
        right = y_cells[y]
        if left == right:
            return True
        x += left < right
        y += right < left
    return False


cdef object numbers_of(const Buffer* buffer):
    """The buffer's numbers as an array."""
    if buffer.size == 0:
        return np.empty(0, np.int64)
    return np.frombuffer((<char*> buffer.data)[: buffer.size], np.int64)
