from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.sstable.sst_walker cimport HitList
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef struct Segments:        # disjoint ranges of stored keys, ascending
    const uint8_t* data      # eight bytes behind it can be read
    const uint64_t* offsets  # of 2 * count bounds: low, high, low, high ...
    Py_ssize_t count

cdef struct Taken:           # the keys found in the segments: tier after tier, each in key order
    Buffer keys              # one after another, as stored
    Buffer ends              # of each key, uint64; two entries of one key have it twice
    HitList hits             # of the tier being walked; their `position`: of the key in `ends`
    size_t begun             # so many keys are of the tiers before
    size_t begun_bytes
    size_t most_keys         # no further key of a tier is taken once there are so many,
    size_t most_bytes        # or so many bytes of keys
    Buffer bound             # no key behind this one is taken, if there is one; set when it is full
    bint has_bound
    bint is_full             # the tier has more keys, or may have

# The first segment from `start` on that ends behind the key.
cdef Py_ssize_t segment_behind(
    const Segments* segments, Py_ssize_t start, const uint8_t* key, size_t size
) noexcept nogil
# Whether the next key of the tier is to be left out: it lies behind the bound, or there are enough.
# Sets the bound then.
cdef bint is_enough(Taken* taken, const uint8_t* key, size_t size) except -1 nogil
cdef int take_key(Taken* taken, const uint8_t* key, size_t size) except -1 nogil
# Take the entries in the segments from `start` on whose keys are not less than `least`; the segment
# reached. All keys of the next file are greater.
cdef Py_ssize_t walk_sst(
    Sst sst, const Segments* segments, Py_ssize_t start, const Buffer* least, Taken* taken
) except -1 nogil
