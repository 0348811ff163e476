"""Paths of attributes and their values as numbers, which are equal exactly if both are."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer


cdef struct Attribute:
    uint64_t hash  # of its path, the same in every process
    uint64_t at  # of its path among the bytes
    uint32_t size
    uint32_t is_wanted


cdef struct Value:
    uint64_t hash  # of path and value, the same in every process
    uint64_t at  # among the bytes
    uint32_t size
    uint32_t attribute


# Slots of an open hash table: the number of an entry, plus one.
cdef struct Slots:
    uint32_t* at
    size_t mask
    size_t used


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    x ^= x >> 33
    x *= <uint64_t> 0xff51afd7ed558ccd
    x ^= x >> 33
    x *= <uint64_t> 0xc4ceb9fe1a85ec53
    return x ^ (x >> 33)


cdef class AttributeValues:
    cdef Buffer bytes
    cdef Buffer attributes
    cdef Buffer values
    cdef Slots attribute_slots
    cdef Slots value_slots
    cdef uint64_t hash_mask
    cdef list wanted
    cdef list unwanted

    cdef uint32_t n_attributes(self) noexcept nogil
    cdef uint32_t n_values(self) noexcept nogil
    cdef const Attribute* attribute(self, uint32_t number) noexcept nogil
    cdef const Value* value(self, uint32_t number) noexcept nogil
    cdef int64_t attribute_of(self, const uint8_t* path, size_t size) except -1
    cdef int64_t value_of(self, uint32_t attribute, const uint8_t* data, size_t size) except -1
    cdef bint is_wanted(self, bytes path) except -1
    cdef int grow_attributes(self) except -1
    cdef int grow_values(self) except -1


# Documents as sorted pairs: the attribute's number above, the value's below.
cdef class Documents:
    cdef readonly AttributeValues values
    cdef Buffer pairs
    cdef Buffer ends  # uint64_t: where each document's pairs end
    cdef Buffer faults  # uint8_t

    cdef Py_ssize_t count(self) noexcept nogil
    cdef const uint64_t* pairs_of(self, Py_ssize_t place, uint32_t* count) noexcept nogil
    cdef int end_document(self, uint8_t fault, size_t begin) except -1
