"""Ranges of keys as bytes, for a whole batch at once: sorted, joined to disjoint segments, and swept
over ascending keys.

The encoding of the first values of a key is a prefix of the key (key_codec.pyx). A bound that
includes its value below, or excludes it above, is therefore the encoded value itself. One that
excludes it below, or includes it above, is the least string behind all that begin with it.
"""

cimport cython
import numpy as np

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch

cdef enum:
    BOUND_BYTES = 2 * 8 + 2 * 4 + 2 * 4  # of a range beside its bounds: offsets, orders, segments


@cython.final
cdef class EncodedRanges:
    """Immutable, so threads may share it; see encoded_ranges.pxd for the fields."""

    def __init__(
        self, Py_ssize_t n, KeyBatch lows, KeyBatch highs, bint after_low=False,
        bint after_high=False, tuple zones=(),
    ):
        """Make the ranges of n rows of bounds.

        ``lows`` and ``highs`` are encoded values of the first key columns, one per row; None: of no
        column. ``after_low``: a range begins behind all keys that begin so. ``after_high``: it ends
        behind them. A row with a null has no range. ``zones``: see encoded_ranges.pxd.
        """
        self.n = n
        self.zones = zones
        for _, least, greatest in zones:
            if len(least) != n or len(greatest) != n:
                raise ValueError(f"{len(least)} and {len(greatest)} bounds of a zone for {n} ranges")
        for batch in (lows, highs):
            if batch is not None and len(batch) != n:
                raise ValueError(f"{len(batch)} bounds for {n} ranges")
        self._take_bounds(lows, highs, after_low, after_high)
        with nogil:
            self._join()

    def __dealloc__(self):
        free(self.data)
        free(self.offsets)
        free(self.rows)
        free(self.by_high)
        free(self.segments)

    def __len__(self):
        return self.n

    def some(self, rows):
        """Return the ranges of some rows (int64) of the bounds, which keep the rows' numbers."""
        cdef const int64_t[::1] wanted = np.ascontiguousarray(rows, np.int64)
        cdef EncodedRanges found = EncodedRanges.__new__(EncodedRanges)
        cdef uint8_t* mask = <uint8_t*> calloc(self.n + 1, 1)
        cdef Py_ssize_t i
        if mask == NULL:
            raise MemoryError(f"no memory for {self.n} ranges")
        try:
            for i in range(wanted.shape[0]):
                if not 0 <= wanted[i] < self.n:
                    raise IndexError(f"row {wanted[i]} of {self.n}")
                mask[wanted[i]] = 1
            found.n = self.n
            found.zones = self.zones
            with nogil:
                found._take_some(self, mask)
                found._join()
        finally:
            free(mask)
        return found

    cdef int _take_some(self, EncodedRanges whole, const uint8_t* mask) except -1 nogil:
        """Copy the ranges of the rows in a mask."""
        cdef Py_ssize_t k, count = 0
        cdef size_t at = 0, low, high
        cdef uint32_t* number_of = <uint32_t*> malloc((whole.count + 1) * sizeof(uint32_t))
        if number_of == NULL:
            with gil:
                raise MemoryError(f"no memory for {whole.count} ranges")
        for k in range(whole.count):
            number_of[k] = <uint32_t> count
            if mask[whole.rows[k]]:
                count += 1
                at += whole.offsets[2 * k + 2] - whole.offsets[2 * k]
        self.data = <uint8_t*> malloc(at + 8)
        self.offsets = <uint64_t*> calloc(2 * count + 1, sizeof(uint64_t))
        self.rows = <uint32_t*> malloc((count + 1) * sizeof(uint32_t))
        self.by_high = <uint32_t*> malloc((count + 1) * sizeof(uint32_t))
        self.segments = <uint32_t*> malloc(2 * (count + 1) * sizeof(uint32_t))
        if not (self.data and self.offsets and self.rows and self.by_high and self.segments):
            free(number_of)
            with gil:
                raise MemoryError(f"no memory for {count} ranges")
        for k in range(whole.count):
            if not mask[whole.rows[k]]:
                continue
            at = self.offsets[2 * self.count]
            low, high = whole.offsets[2 * k], whole.offsets[2 * k + 2]
            memcpy(self.data + at, whole.data + low, high - low)
            self.offsets[2 * self.count + 1] = at + whole.offsets[2 * k + 1] - low
            self.offsets[2 * self.count + 2] = at + high - low
            self.rows[self.count] = whole.rows[k]
            self.count += 1
        count = 0
        for k in range(whole.count):
            if mask[whole.rows[whole.by_high[k]]]:
                self.by_high[count] = number_of[whole.by_high[k]]
                count += 1
        free(number_of)
        return 0

    @property
    def nbytes(self):
        """Bytes of memory, roughly."""
        return (
            <int64_t> self.offsets[2 * self.count] + (self.count + 1) * BOUND_BYTES
            + 2 * sizeof(uint64_t) * self.n * len(self.zones)
        )

    def segment(self, Py_ssize_t place):
        """Return low and high of a segment without a stream's number; the high of the last one may
        be None: there is no bound."""
        if not 0 <= place < self.segment_count:
            raise IndexError(f"segment {place} of {self.segment_count}")
        cdef size_t low = 2 * <size_t> self.segments[2 * place]
        cdef size_t high = 2 * <size_t> self.segments[2 * place + 1] + 1
        found = <bytes> self.data[self.offsets[low] + STREAM_BYTES:self.offsets[low + 1]]
        if is_end(self.data + self.offsets[high]):
            return found, None
        return found, <bytes> self.data[self.offsets[high] + STREAM_BYTES:self.offsets[high + 1]]

    cdef int _take_bounds(self, lows, highs, bint after_low, bint after_high) except -1:
        """Copy the bounds of all ranges that are not empty, in the order of the lower ones."""
        cdef KeyBatch low_keys = lows, high_keys = highs
        cdef Py_ssize_t i, k
        cdef uint32_t row
        cdef uint32_t* range_of
        cdef size_t size = 2 * STREAM_BYTES * (self.n + 1)
        cdef size_t at = 0
        cdef const uint32_t* order = NULL
        cdef Py_ssize_t ordered = self.n
        if lows is not None:
            size += low_keys.offsets[self.n]
            order = low_keys.order
            ordered = low_keys.n_valid
        if highs is not None:
            size += high_keys.offsets[self.n]
        self.data = <uint8_t*> malloc(size)
        self.offsets = <uint64_t*> calloc(2 * self.n + 1, sizeof(uint64_t))
        self.rows = <uint32_t*> malloc((self.n + 1) * sizeof(uint32_t))
        self.by_high = <uint32_t*> malloc((self.n + 1) * sizeof(uint32_t))
        self.segments = <uint32_t*> malloc(2 * (self.n + 1) * sizeof(uint32_t))
        if not (self.data and self.offsets and self.rows and self.by_high and self.segments):
            raise MemoryError(f"no memory for {self.n} ranges")
        range_of = <uint32_t*> malloc((self.n + 1) * sizeof(uint32_t))
        if range_of == NULL:
            raise MemoryError(f"no memory for {self.n} ranges")
        with nogil:
            memset(range_of, 0xFF, self.n * sizeof(uint32_t))
            for i in range(ordered):
                row = order[i] if order != NULL else <uint32_t> i
                if <void*> highs != <void*> None and not high_keys.valid[row]:
                    continue
                k = 2 * self.count
                at = put_bound(self.data, self.offsets[k], low_keys, row, after_low)
                self.offsets[k + 1] = at
                at = put_bound(self.data, at, high_keys, row, after_high)
                if compare(
                    self.data + self.offsets[k], self.offsets[k + 1] - self.offsets[k],
                    self.data + self.offsets[k + 1], at - self.offsets[k + 1],
                ) < 0:
                    self.offsets[k + 2] = at
                    self.rows[self.count] = row
                    range_of[row] = <uint32_t> self.count
                    self.count += 1
            k = 0
            for i in range(high_keys.n_valid if <void*> highs != <void*> None else self.n):
                row = high_keys.order[i] if <void*> highs != <void*> None else <uint32_t> i
                if range_of[row] != <uint32_t> -1:
                    self.by_high[k] = range_of[row]
                    k += 1
        free(range_of)
        return 0

    cdef int _join(self) except -1 nogil:
        """Join ranges that overlap or touch."""
        cdef Py_ssize_t k
        cdef uint32_t reached = 0
        for k in range(self.count):
            if k and order_of_bounds(self, 2 * k, 2 * <Py_ssize_t> reached + 1) <= 0:
                if order_of_bounds(self, 2 * k + 1, 2 * <Py_ssize_t> reached + 1) > 0:
                    reached = <uint32_t> k
            else:
                reached = <uint32_t> k
                self.segments[2 * self.segment_count] = reached
                self.segment_count += 1
            self.segments[2 * self.segment_count - 1] = reached
        return 0


cdef size_t put_bound(
    uint8_t* data, size_t at, KeyBatch keys, uint32_t row, bint is_after
) noexcept nogil:
    """Put a bound, with the stream's number 0; return where it ends."""
    cdef size_t size = STREAM_BYTES
    memset(data + at, 0, STREAM_BYTES)
    if <void*> keys != <void*> None:
        size = keys.offsets[row + 1] - keys.offsets[row]
        memcpy(
            data + at + STREAM_BYTES, keys.data + keys.offsets[row] + STREAM_BYTES,
            size - STREAM_BYTES,
        )
    if is_after:
        while data[at + size - 1] == 0xFF:
            size -= 1
        data[at + size - 1] += 1
    return at + size


cdef inline int order_of_bounds(EncodedRanges ranges, Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return compare(
        ranges.data + ranges.offsets[a], ranges.offsets[a + 1] - ranges.offsets[a],
        ranges.data + ranges.offsets[b], ranges.offsets[b + 1] - ranges.offsets[b],
    )


@cython.final
cdef class RangeSweep:
    """Which keys lie in which range. Keys come in ascending batches, and each range is visited once
    for each batch that it reaches into."""

    cdef EncodedRanges ranges
    cdef Py_ssize_t begun     # so many ranges, in the order of lower bounds
    cdef Py_ssize_t ended     # so many, in the order of upper bounds
    cdef uint32_t* active     # ranges that have begun and not ended
    cdef Py_ssize_t active_count
    cdef uint32_t* first      # per range: its first key in the batch
    cdef uint32_t* stop       # per range that ends in the batch

    def __cinit__(self, EncodedRanges ranges not None):
        self.ranges = ranges
        self.active = <uint32_t*> malloc((ranges.count + 1) * sizeof(uint32_t))
        self.first = <uint32_t*> malloc((ranges.count + 1) * sizeof(uint32_t))
        self.stop = <uint32_t*> malloc((ranges.count + 1) * sizeof(uint32_t))
        if not (self.active and self.first and self.stop):
            raise MemoryError(f"no memory for {ranges.count} ranges")

    def __init__(self, EncodedRanges ranges not None):
        pass

    def __dealloc__(self):
        free(self.active)
        free(self.first)
        free(self.stop)

    def next(self, KeyBatch keys not None, bint is_last):
        """Return which ranges hold keys of the next batch, by rows of the bounds, and for each the
        stretch of keys: it holds ``keys[first:stop]``. Three int64 arrays.

        The keys are distinct and ascend, within a batch and from batch to batch.
        """
        cdef Py_ssize_t most, found
        with nogil:
            self._sweep(self.ranges, keys, is_last)
        most = self.active_count
        rows = np.empty(most, np.int64)
        first = np.empty(most, np.int64)
        stop = np.empty(most, np.int64)
        cdef int64_t[::1] row_view = rows, first_view = first, stop_view = stop
        if most == 0:
            return rows, first, stop
        with nogil:
            found = self._take(keys.n, &row_view[0], &first_view[0], &stop_view[0])
        return rows[:found], first[:found], stop[:found]

    cdef void _sweep(self, EncodedRanges ranges, KeyBatch keys, bint is_last) noexcept nogil:
        """Begin and end the ranges that do so in the batch."""
        cdef Py_ssize_t i, place = 0
        cdef uint32_t k
        for i in range(self.active_count):
            self.first[self.active[i]] = 0
        while self.begun < ranges.count:
            k = <uint32_t> self.begun
            while place < keys.n and is_below(keys, place, ranges, 2 * <size_t> k):
                place += 1
            if place == keys.n and not is_last:
                break
            self.first[k] = <uint32_t> place
            self.stop[k] = <uint32_t> -1
            self.active[self.active_count] = k
            self.active_count += 1
            self.begun += 1
        place = 0
        while self.ended < ranges.count:
            k = ranges.by_high[self.ended]
            while place < keys.n and is_below(keys, place, ranges, 2 * <size_t> k + 1):
                place += 1
            if place == keys.n and not is_last:
                break
            self.stop[k] = <uint32_t> place
            self.ended += 1

    cdef Py_ssize_t _take(
        self, Py_ssize_t n, int64_t* rows, int64_t* first, int64_t* stop
    ) noexcept nogil:
        """Note the stretches of the active ranges; forget those that have ended."""
        cdef Py_ssize_t i, found = 0, left = 0
        cdef uint32_t k
        cdef uint32_t end
        for i in range(self.active_count):
            k = self.active[i]
            end = self.stop[k]
            if end == <uint32_t> -1:
                end = <uint32_t> n
                self.active[left] = k
                left += 1
            if self.first[k] < end:
                rows[found] = self.ranges.rows[k]
                first[found] = self.first[k]
                stop[found] = end
                found += 1
        self.active_count = left
        return found
