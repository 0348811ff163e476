"""What all indexes of documents share: the stored documents, and how a lookup is asked and answered."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.documents.attribute_values cimport Documents


# Places of documents, ascending.
cdef struct List:
    uint32_t* at
    uint32_t size
    uint32_t capacity


cdef class DocumentIndex:
    cdef readonly Documents documents
    # Nanoseconds that storing and looking up took, reckoned by steps: the same in every run.
    cdef readonly uint64_t work
    cdef uint32_t at_least
    cdef Buffer found  # uint32_t: places of documents
    cdef Buffer cell_ends
    cdef Buffer cells

    cdef int keep_own(self, const Buffer* ends, const Buffer* numbers, Py_ssize_t place) except -1
    cdef size_t own_bytes(self) noexcept
    cdef int add(self, Py_ssize_t place) except -1
    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1
    cdef bint matches(self, const uint64_t* pairs, uint32_t size, uint32_t document) noexcept nogil


cdef bint match(
    const uint64_t* a, uint32_t a_size, const uint64_t* b, uint32_t b_size, uint32_t at_least
) noexcept nogil
cdef int fill_to(Buffer* buffer, size_t size) except -1
cdef int64_t put_number(List* list_, uint32_t number) except -1
