from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef class RowBatch:
    """n encoded rows in one buffer: row i is ``data[offsets[i]:offsets[i + 1]]``."""
    cdef Py_ssize_t n
    cdef uint8_t* data
    cdef uint64_t* offsets


cdef class RowCodec:
    cdef RowBatch encode_c(self, object batch)
    # Rows -> one pyarrow.RecordBatch. The bytes are checked, never trusted: CorruptionError.
    cdef object decode_c(self, const uint8_t* data, const uint64_t* offsets, Py_ssize_t n)
