"""Paths of attributes and their values as numbers, which are equal exactly if both are.

A *pair* is an attribute's number and, below it, a value's. Numbers are given out as values come,
so they hold inside one process; the hashes beside them are the same in every process. Entries of
one hash are told apart by their bytes.
"""

cimport cython
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from lsmstate.cython_ext.base.coding cimport put_bytes, release, reserve
from lsmstate.cython_ext.base.compression cimport xxh3

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef enum:
    FIRST_SLOTS = 1024
    MOST_ENTRIES = 0x7FFFFFFF


@cython.final
cdef class AttributeValues:
    """The numbers that were given out, and what they stand for.

    ``wanted`` and ``unwanted`` are paths that cover what lies below them. Attributes that are not
    wanted have a number too, and no pairs.
    """

    def __cinit__(self, wanted=None, unwanted=(), int hash_bits=64):
        memset(&self.bytes, 0, sizeof(Buffer))
        memset(&self.attributes, 0, sizeof(Buffer))
        memset(&self.values, 0, sizeof(Buffer))
        memset(&self.attribute_slots, 0, sizeof(Slots))
        memset(&self.value_slots, 0, sizeof(Slots))
        open_slots(&self.attribute_slots, FIRST_SLOTS)
        open_slots(&self.value_slots, FIRST_SLOTS)
        # Fewer bits only where a test wants many values of one hash.
        self.hash_mask = <uint64_t> -1 if hash_bits == 64 else (<uint64_t> 1 << hash_bits) - 1
        self.wanted = None if wanted is None else [name.encode() for name in wanted]
        self.unwanted = [name.encode() for name in unwanted]

    def __init__(self, wanted=None, unwanted=(), hash_bits=64):
        pass

    def __dealloc__(self):
        release(&self.bytes)
        release(&self.attributes)
        release(&self.values)
        free(self.attribute_slots.at)
        free(self.value_slots.at)

    @property
    def nbytes(self):
        """Bytes that the numbers take."""
        return (
            self.bytes.capacity + self.attributes.capacity + self.values.capacity
            + 4 * (self.attribute_slots.mask + self.value_slots.mask + 2)
        )

    @property
    def attributes(self):
        """How many attributes have a number."""
        return self.n_attributes()

    def path(self, uint32_t attribute):
        """Return the path of an attribute. IndexError if there is none of that number."""
        if attribute >= self.n_attributes():
            raise IndexError(f"attribute {attribute} of {self.n_attributes()}")
        found = self.attribute(attribute)
        return (<char*> self.bytes.data)[found.at : found.at + found.size].decode()

    def number(self, str path):
        """Return the number of an attribute, which it is given if it has none."""
        data = path.encode()
        return self.attribute_of(data, len(data))

    cdef uint32_t n_attributes(self) noexcept nogil:
        return <uint32_t> (self.attributes.size / sizeof(Attribute))

    cdef uint32_t n_values(self) noexcept nogil:
        return <uint32_t> (self.values.size / sizeof(Value))

    cdef const Attribute* attribute(self, uint32_t number) noexcept nogil:
        return <const Attribute*> self.attributes.data + number

    cdef const Value* value(self, uint32_t number) noexcept nogil:
        return <const Value*> self.values.data + number

    cdef int64_t attribute_of(self, const uint8_t* path, size_t size) except -1:
        cdef uint64_t hash = mixed(xxh3(path, size)) & self.hash_mask
        cdef size_t slot = hash & self.attribute_slots.mask
        cdef uint32_t number
        cdef const Attribute* known
        cdef Attribute added
        while self.attribute_slots.at[slot]:
            number = self.attribute_slots.at[slot] - 1
            known = self.attribute(number)
            if known.hash == hash and known.size == size and (
                memcmp(self.bytes.data + known.at, path, size) == 0
            ):
                return number
            slot = (slot + 1) & self.attribute_slots.mask
        number = self.n_attributes()
        added.hash = hash
        added.at = self.bytes.size
        added.size = <uint32_t> size
        added.is_wanted = self.is_wanted((<const char*> path)[:size])
        put_bytes(&self.bytes, path, size)
        put_bytes(&self.attributes, &added, sizeof(Attribute))
        self.attribute_slots.at[slot] = number + 1
        self.attribute_slots.used += 1
        if 2 * self.attribute_slots.used > self.attribute_slots.mask:
            self.grow_attributes()
        return number

    cdef int64_t value_of(self, uint32_t attribute, const uint8_t* data, size_t size) except -1:
        """Return the number of a value under an attribute."""
        cdef uint64_t hash = mixed(xxh3(data, size) + mixed(self.attribute(attribute).hash))
        cdef size_t slot
        cdef uint32_t number
        cdef const Value* known
        cdef Value added
        hash &= self.hash_mask
        slot = hash & self.value_slots.mask
        while self.value_slots.at[slot]:
            number = self.value_slots.at[slot] - 1
            known = self.value(number)
            if known.hash == hash and known.attribute == attribute and known.size == size and (
                memcmp(self.bytes.data + known.at, data, size) == 0
            ):
                return number
            slot = (slot + 1) & self.value_slots.mask
        number = self.n_values()
        if number >= MOST_ENTRIES:
            raise InvalidArgumentError(f"{number} values of attributes; give smaller batches")
        added.hash = hash
        added.at = self.bytes.size
        added.size = <uint32_t> size
        added.attribute = attribute
        put_bytes(&self.bytes, data, size)
        put_bytes(&self.values, &added, sizeof(Value))
        self.value_slots.at[slot] = number + 1
        self.value_slots.used += 1
        if 2 * self.value_slots.used > self.value_slots.mask:
            self.grow_values()
        return number

    cdef bint is_wanted(self, bytes path) except -1:
        if self.wanted is not None and not covers(self.wanted, path):
            return False
        return not covers(self.unwanted, path)

    cdef int grow_attributes(self) except -1:
        cdef Slots larger
        cdef uint32_t number
        open_slots(&larger, 2 * (self.attribute_slots.mask + 1))
        for number in range(self.n_attributes()):
            fill_slot(&larger, self.attribute(number).hash, number)
        free(self.attribute_slots.at)
        self.attribute_slots = larger
        return 0

    cdef int grow_values(self) except -1:
        cdef Slots larger
        cdef uint32_t number
        open_slots(&larger, 2 * (self.value_slots.mask + 1))
        for number in range(self.n_values()):
            fill_slot(&larger, self.value(number).hash, number)
        free(self.value_slots.at)
        self.value_slots = larger
        return 0


@cython.final
cdef class Documents:
    """Documents as pairs, sorted by attribute. What is malformed has a fault and no pairs."""

    def __cinit__(self, AttributeValues values not None):
        self.values = values
        memset(&self.pairs, 0, sizeof(Buffer))
        memset(&self.ends, 0, sizeof(Buffer))
        memset(&self.faults, 0, sizeof(Buffer))

    def __init__(self, values):
        pass

    def __dealloc__(self):
        release(&self.pairs)
        release(&self.ends)
        release(&self.faults)

    def __len__(self):
        return self.count()

    @property
    def nbytes(self):
        """Bytes that the documents take, without their values."""
        return self.pairs.capacity + self.ends.capacity + self.faults.capacity

    def faults_found(self):
        """Return the fault of each document as an array; 0: it has none."""
        found = np.empty(self.count(), np.uint8)
        cdef uint8_t[::1] into = found
        cdef Py_ssize_t i
        for i in range(self.count()):
            into[i] = self.faults.data[i]
        return found

    def sizes(self):
        """Return how many pairs each document has."""
        found = np.empty(self.count(), np.int64)
        cdef int64_t[::1] into = found
        cdef uint32_t size
        cdef Py_ssize_t i
        for i in range(self.count()):
            self.pairs_of(i, &size)
            into[i] = size
        return found

    def paths_of(self, Py_ssize_t place):
        """Return the paths of a document, sorted by their numbers. IndexError if there is none."""
        cdef uint32_t size
        if not 0 <= place < self.count():
            raise IndexError(f"document {place} of {self.count()}")
        cdef const uint64_t* pairs = self.pairs_of(place, &size)
        return [self.values.path(<uint32_t> (pairs[i] >> 32)) for i in range(size)]

    def columns(self):
        """Return three arrays: of every pair its document's place, its attribute's number, and the
        hash of its path and value."""
        cdef Py_ssize_t n = self.pairs.size // 8
        places, numbers = np.empty(n, np.int64), np.empty(n, np.int64)
        hashes = np.empty(n, np.uint64)
        cdef int64_t[::1] place_of = places
        cdef int64_t[::1] number_of = numbers
        cdef uint64_t[::1] hash_of = hashes
        cdef const uint64_t* pairs
        cdef uint32_t size
        cdef Py_ssize_t i, j, at = 0
        for i in range(self.count()):
            pairs = self.pairs_of(i, &size)
            for j in range(size):
                place_of[at] = i
                number_of[at] = pairs[j] >> 32
                hash_of[at] = self.values.value(<uint32_t> pairs[j]).hash
                at += 1
        return places, numbers, hashes

    def append(self, Documents others not None, const int64_t[::1] places):
        """Append some documents of the same values. IndexError for a place that does not exist."""
        cdef Py_ssize_t i
        cdef uint32_t size
        cdef const uint64_t* pairs
        if others.values is not self.values or others is self:
            raise InvalidArgumentError("documents of other values; read them with these")
        for i in range(places.shape[0]):
            if not 0 <= places[i] < others.count():
                raise IndexError(f"document {places[i]} of {others.count()}")
            pairs = others.pairs_of(places[i], &size)
            begin = self.pairs.size
            put_bytes(&self.pairs, pairs, 8 * <size_t> size)
            self.end_document(0, begin)

    cdef Py_ssize_t count(self) noexcept nogil:
        return self.faults.size

    cdef const uint64_t* pairs_of(self, Py_ssize_t place, uint32_t* count) noexcept nogil:
        cdef const uint64_t* ends = <const uint64_t*> self.ends.data
        cdef uint64_t begin = ends[place - 1] if place else 0
        count[0] = <uint32_t> (ends[place] - begin)
        return <const uint64_t*> self.pairs.data + begin

    cdef int end_document(self, uint8_t fault, size_t begin) except -1:
        """End a document whose pairs began at a byte; those of a malformed one are dropped."""
        cdef uint64_t end
        if fault:
            self.pairs.size = begin
        end = self.pairs.size // 8
        put_bytes(&self.ends, &end, 8)
        put_bytes(&self.faults, &fault, 1)
        return 0


cdef bint covers(list names, bytes path):
    """Whether one of the names is the path, or stands above it."""
    for name in names:
        if path == name or path.startswith(name + b"."):
            return True
    return False


cdef int open_slots(Slots* slots, size_t count) except -1:
    slots.at = <uint32_t*> calloc(count, 4)
    if slots.at == NULL:
        raise MemoryError(f"cannot allocate {count} slots")
    slots.mask = count - 1
    slots.used = 0
    return 0


cdef void fill_slot(Slots* slots, uint64_t hash, uint32_t number) noexcept nogil:
    cdef size_t slot = hash & slots.mask
    while slots.at[slot]:
        slot = (slot + 1) & slots.mask
    slots.at[slot] = number + 1
    slots.used += 1
