from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef class KeyBatch:
    """n encoded keys in one buffer. It never changes once it bears a stream's number, so threads
    may share it.

    - Key i is ``data[offsets[i]:offsets[i + 1]]``. Its first two bytes are the stream's number
      (big-endian, 0 until of_stream sets it). memcmp orders the rest as the typed keys.
    - A key with a null has ``valid[i] == 0`` and only the two stream bytes.
    - ``hashes[i]`` is XXH3 of the key without its stream bytes (0 if it holds a null).
    - ``order[0:n_valid]`` are the positions of the valid keys, ascending by key, ties by position.
    """
    cdef Py_ssize_t n
    cdef Py_ssize_t n_valid
    cdef uint8_t* data
    cdef uint64_t* offsets
    cdef uint8_t* valid
    cdef uint64_t* hashes
    cdef uint32_t* order
    cdef readonly tuple types      # of the key columns; None: keys that came as bytes
    cdef int32_t stream            # whose number the keys bear; -1: nobody's yet
    cdef bint is_copy              # all but the data is the owner's
    cdef KeyBatch owner
    cpdef KeyBatch of_stream(self, uint32_t stream)
    cdef void _put_stream(self, uint32_t stream) noexcept nogil
    cdef int take_rows(self, Py_ssize_t n) except -1 nogil
    cdef int take_data(self) except -1 nogil
    cdef int finish(self) except -1 nogil
