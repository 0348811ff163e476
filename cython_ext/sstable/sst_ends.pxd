from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.sstable.sst_walker cimport HitList
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef struct End:             # of a range: its last key, or its first one, as far as is known
    size_t key               # place in `keys`
    uint32_t size            # 0: no key was found
    uint32_t changes         # how often another key took the place of one
    bint is_open             # a walk has to find it

cdef struct Found:           # what a tier has for a range
    int32_t place            # its hit, or its entry; -1: nothing
    uint32_t changes         # of the End: another number says that a better key was found since

cdef struct Ends:
    const uint8_t* data      # of bounds; eight bytes behind it can be read
    const uint64_t* offsets  # of 2 * count bounds: low and high of each range
    Py_ssize_t count         # ranges, ascending by the bound that keys are looked for at
    bint is_last
    End* items
    Buffer keys              # of ends, those that were replaced among them

# Whether a key that lies in a range is its end, as far as is known: 1: it is the one that was known,
# 2: it is to be put in its place, 0: no.
cdef int is_end_of(Ends* ends, Py_ssize_t place, const uint8_t* key, size_t size) noexcept nogil
# Put a key in the place of the end of a range. `copy`: where the key lies among the ends' keys, or
# -1; it is set.
cdef int put_end(
    Ends* ends, Py_ssize_t place, const uint8_t* key, size_t size, Py_ssize_t* copy
) except -1 nogil
# The first range from `start` on whose upper bound is greater than the key.
cdef Py_ssize_t first_above(
    const Ends* ends, Py_ssize_t start, const uint8_t* key, size_t size
) noexcept nogil
# Look for the ends of the ranges from `start` to `stop` in a file, which notes its hits. The place
# reached: with `is_last` it is `stop`, else that of the first range that begins behind the file.
cdef Py_ssize_t find_ends_sst(
    Sst sst, Ends* ends, Py_ssize_t start, Py_ssize_t stop, Found* found, HitList* hits
) except -1 nogil
