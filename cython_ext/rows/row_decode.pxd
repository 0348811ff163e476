from libc.stdint cimport int64_t, uint8_t, uint64_t

from lsmstate.cython_ext.rows.row_builder cimport Builder
from lsmstate.cython_ext.rows.row_layout cimport Layout, Place

# Reads the rows into the children of `builder`, which is the root's, behind those that are in it.
# `expected`: how many there will be in the end, about. CorruptionError and MemoryLimitError say
# what is wrong, `place` where.
cdef int read_rows(
    const Layout* layout,
    const uint8_t* data,
    const uint64_t* offsets,
    int64_t n,
    int64_t expected,
    Builder* builder,
    Place* place,
) except -1 nogil
