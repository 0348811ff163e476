from libc.stdint cimport uint8_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.rows.row_codec cimport RowCodec


cdef class KeyDecoder:
    cdef RowCodec codec
    cdef Buffer nested           # a nested column, while its length is not known
    # Append the key (without its stream's number) to `target` as a row of the key's columns.
    cdef int put_row(self, const uint8_t* key, size_t size, Buffer* target) except -1 nogil
