from libc.stdint cimport int64_t, uint8_t


cdef class ReadFile:
    cdef int descriptor
    cdef readonly str path
    cdef readonly int64_t size
    # Exactly `size` bytes at `offset`, or CorruptionError (short file) / OSError.
    cdef int read_at(self, int64_t offset, uint8_t* target, size_t size) except -1 nogil


cdef class AppendFile:
    cdef int descriptor
    cdef readonly str path
    cdef readonly int64_t size
    cdef int append_c(self, const uint8_t* source, size_t size) except -1 nogil
    cdef int64_t _begin_append(self, size_t size) except -2 nogil
    cdef int _put(self, const uint8_t* source, size_t size) except -1 nogil
    cdef int _fail_torn(self) except -1 nogil
