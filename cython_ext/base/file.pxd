from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer


cdef struct ReadAhead:     # bytes that were read together, for whoever reads a file upwards
    void* file             # the ReadFile, which its reader keeps
    uint64_t offset
    Buffer bytes
    uint64_t wanted_end    # the reader will want most of what comes before this; if it is not there


cdef inline bint is_there(
    const ReadAhead* ahead, const void* file, uint64_t offset, size_t size
) noexcept nogil:
    """Whether these bytes of the file were read."""
    return (
        ahead.file == file and ahead.offset <= offset
        and offset + size <= ahead.offset + ahead.bytes.size
    )


cdef class ReadFile:
    cdef int descriptor
    cdef readonly str path
    cdef readonly int64_t size
    # The bytes at `offset` out of `ahead`, filled up to its wanted_end if need be; NULL without an
    # exception if nothing behind them is wanted.
    cdef const uint8_t* read_ahead(
        self, uint64_t offset, size_t size, ReadAhead* ahead
    ) except? NULL nogil
    # Exactly `size` bytes at `offset`, or CorruptionError (short file) / OSError.
    cdef int read_at(self, int64_t offset, uint8_t* target, size_t size) except -1 nogil


cdef class AppendFile:
    cdef int descriptor
    cdef bint to_be_synced
    cdef int64_t written_back
    cdef readonly str path
    cdef readonly int64_t size
    cdef int append_c(self, const uint8_t* source, size_t size) except -1 nogil
    cdef int64_t _begin_append(self, size_t size) except -2 nogil
    cdef int _put(self, const uint8_t* source, size_t size) except -1 nogil
    cdef int _begin_write_back(self) except -1 nogil
    cdef int _fail_torn(self) except -1 nogil
