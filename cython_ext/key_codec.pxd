from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class KeyBatch:
    """n encoded keys in one buffer.

    Key i is ``data[offsets[i]:offsets[i + 1]]``; its first two bytes are the stream's number
    (big-endian, rewritten by set_stream), the rest compares by memcmp as the typed key does.
    A key that holds a null has ``valid[i] == 0`` and only the two stream bytes.
    ``hashes[i]`` is XXH3 of the key without its stream bytes (0 if it holds a null).
    ``order[0:n_valid]`` are the positions of the valid keys, ascending by key, ties by position.
    """
    cdef Py_ssize_t n
    cdef Py_ssize_t n_valid
    cdef uint8_t* data
    cdef uint64_t* offsets
    cdef uint8_t* valid
    cdef uint64_t* hashes
    cdef uint32_t* order
    cdef readonly tuple types      # of the key columns; None: keys that came as bytes
    cdef int set_stream(self, uint32_t stream) except -1 nogil
    cdef int take_rows(self, Py_ssize_t n) except -1 nogil
    cdef int take_data(self) except -1 nogil
    cdef int finish(self) except -1 nogil
