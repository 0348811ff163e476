"""Ranges of keys as bytes; used from Cython only."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch


cdef class EncodedRanges:
    """Ranges that are not empty, in the order of their lower bounds.

    - Range k goes from bound 2k on and ends below bound 2k + 1. Bound i is
      ``data[offsets[i]:offsets[i + 1]]``.
    - A bound begins with two bytes for the stream's number, which are 0; an upper bound that stands
      behind the whole stream is the number 1 alone.
    """
    cdef readonly Py_ssize_t n     # rows of the bounds that were given
    cdef readonly Py_ssize_t count # ranges
    # By column of the rows: its number, and for each row of the bounds the least and the greatest
    # word wanted (uint64 arrays).
    cdef readonly tuple zones
    cdef uint8_t* data
    cdef uint64_t* offsets
    cdef uint32_t* rows            # per range: its row of the bounds
    cdef uint32_t* by_high         # ranges in the order of their upper bounds
    # Segments: the union of all ranges as disjoint ones, ascending. Segment s goes from the lower
    # bound of range segments[2s] to the upper bound of range segments[2s + 1].
    cdef readonly Py_ssize_t segment_count
    cdef uint32_t* segments
    cdef int _take_some(self, EncodedRanges whole, const uint8_t* mask) except -1 nogil
    cdef int _take_bounds(self, lows, highs, bint after_low, bint after_high) except -1
    cdef int _join(self) except -1 nogil


cdef inline bint is_end(const uint8_t* bound) noexcept nogil:
    """Whether an upper bound stands behind the whole stream."""
    return bound[STREAM_BYTES - 1] != 0


cdef inline bint is_below(
    KeyBatch keys, size_t place, EncodedRanges ranges, size_t bound
) noexcept nogil:
    """Whether a key is less than a bound, whatever streams' numbers they bear."""
    cdef const uint8_t* other = ranges.data + ranges.offsets[bound]
    if is_end(other):
        return True
    return compare(
        keys.data + keys.offsets[place] + STREAM_BYTES,
        keys.offsets[place + 1] - keys.offsets[place] - STREAM_BYTES,
        other + STREAM_BYTES, ranges.offsets[bound + 1] - ranges.offsets[bound] - STREAM_BYTES,
    ) < 0
