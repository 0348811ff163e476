from libc.stdint cimport int64_t, uint8_t

from lsmstate.cython_ext.rows.row_builder cimport Builder
from lsmstate.cython_ext.rows.row_layout cimport Layout

# n rows of one width, transposed: byte j of row i is data[j * stride + i]. SLACK_BYTES behind the
# last of them may be read, too.
cdef struct Planes:
    const uint8_t* data
    size_t stride
    size_t width
    Py_ssize_t n

cdef enum:
    SLACK_BYTES = 15

# Whether read_planes takes these rows: they are whole, no column is nested, and whatever has no fixed
# width lies in the same bytes of each. Of others read_rows says what is wrong with them.
cdef bint are_alike(const Layout* layout, const Planes* planes) noexcept nogil
# As read_rows, rows that are alike.
cdef int read_planes(
    const Layout* layout, const Planes* planes, int64_t expected, Builder* builder
) except -1 nogil
