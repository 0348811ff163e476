from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.rows.arrow_read cimport TypeTree
from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.rows.row_builder cimport Builder
from lsmstate.cython_ext.rows.row_layout cimport Layout, Place
from lsmstate.cython_ext.rows.row_planes cimport Planes


cdef class RowBatch:
    """n encoded rows in one buffer: row i is ``data[offsets[i]:offsets[i + 1]]``."""
    cdef Py_ssize_t n
    cdef uint8_t* data
    cdef uint64_t* offsets


cdef class RowCodec:
    cdef TypeTree tree
    cdef Layout layout
    cdef list required  # columns that are not nullable
    cdef list extensions  # columns to wrap again
    cdef RowBatch encode_c(self, object batch)
    # Rows -> one pyarrow.RecordBatch. The bytes are checked, never trusted: CorruptionError.
    # `budget` (or None) as a BatchBuilder's.
    cdef object decode_c(
        self, const uint8_t* data, const uint64_t* offsets, Py_ssize_t n, Budget budget
    )
    cdef object located(self, object error, int64_t row, Py_ssize_t column)
    cdef object wrapped(self, object batch)


cdef class BatchBuilder:
    """One batch of rows that arrive in portions, which are decoded while they are in the
    processor's cache. `codec` is the rows'; `budget` may keep large released buffers for the next
    batch."""
    cdef RowCodec codec
    cdef Budget budget
    cdef Builder builder
    cdef Place place
    cdef bint is_adding  # or `add` raised
    # n rows more, where about `expected` come in all. A CorruptionError does not say yet of which
    # row it is: see `located`.
    cdef int add(
        self, const uint8_t* data, const uint64_t* offsets, Py_ssize_t n, Py_ssize_t expected
    ) except -1 nogil
    # The same of transposed rows that are alike.
    cdef int add_planes(self, const Planes* planes, int64_t expected) except -1 nogil
    # The CorruptionError of `add` with row and column.
    cdef object located(self, object error)
    # Bytes of the columns so far.
    cdef int64_t nbytes(self) noexcept nogil
    # The pyarrow.RecordBatch of all of them.
    cdef object finished(self)
