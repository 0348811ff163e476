from libc.stdint cimport uint8_t, uint64_t

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.rows.row_layout cimport Layout

# Fills offsets[1:n + 1] with the rows' sizes; the caller sums them up and allocates.
cdef void measure_rows(
    const Layout* layout, const ArrowArray* batch, uint64_t* offsets
) noexcept nogil
# -1, or the number of a column with a decimal beyond its precision.
cdef Py_ssize_t write_rows(
    const Layout* layout, const ArrowArray* batch, const uint64_t* offsets, uint8_t* data
) noexcept nogil
