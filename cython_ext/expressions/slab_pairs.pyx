"""Rows that two ranges hold for, without a look at each row.

Rows lie in slabs. Those of a slab ascend by a second value, so a range of it is a stretch of the slab.
A slab also knows the least and the greatest first value of its rows. If a range of first values takes
all of a slab, or none, the stretch is given or passed over as a whole. So only slabs at an end of the
range are compared row by row.

Values are compared as *codes*: whole numbers in the order that conditions have. -0.0 is 0.0, and every
NaN is the greatest value. A range has a least and a greatest code, which belong to it.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t

import numpy as np

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define MOST_SLAB 4096

    /* The same code for each set of instructions: whole numbers, so the results are the same. */
    #if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
    #include <immintrin.h>
    #define SLAB_CLONES __attribute__((target_clones("avx2", "default")))
    #define HAS_WIDE_SCAN 1
    #else
    #define SLAB_CLONES
    #endif

    SLAB_CLONES static void float_codes(const int64_t* values, int64_t n, int64_t* codes)
    {
        for (int64_t k = 0; k < n; k++) {
            double value;
            int64_t bits;
            memcpy(&value, values + k, 8);
            value += 0.0;
            memcpy(&bits, &value, 8);
            bits ^= (int64_t) ((uint64_t) (bits < 0 ? -1 : 0) >> 1);
            codes[k] = value == value ? bits : INT64_MAX;
        }
    }

    SLAB_CLONES static void code_ends(const int64_t* codes, int64_t n, int64_t* least, int64_t* most)
    {
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (int64_t k = 0; k < n; k++) {
            low = codes[k] < low ? codes[k] : low;
            high = codes[k] > high ? codes[k] : high;
        }
        *least = low;
        *most = high;
    }

    /* The places of codes from low to high among n of them; returns how many. */
    SLAB_CLONES static int64_t slab_scan(
        const int64_t* codes, int64_t n, int64_t low, int64_t high, int32_t* found)
    {
        uint8_t held[MOST_SLAB];
        int64_t total = 0, k = 0;
        for (k = 0; k < n; k++)
            held[k] = (codes[k] >= low) & (codes[k] <= high);
        for (k = 0; k + 8 <= n; k += 8) {
            uint64_t eight;
            memcpy(&eight, held + k, 8);
            if (eight == 0) continue;
            for (int j = 0; j < 8; j++) {
                found[total] = (int32_t) (k + j);
                total += held[k + j];
            }
        }
        for (; k < n; k++) {
            found[total] = (int32_t) k;
            total += held[k];
        }
        return total;
    }

    #ifdef HAS_WIDE_SCAN
    __attribute__((target("avx512f,avx512vl"))) static int64_t slab_scan_wide(
        const int64_t* codes, int64_t n, int64_t low, int64_t high, int32_t* found)
    {
        __m512i least = _mm512_set1_epi64(low), most = _mm512_set1_epi64(high);
        __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
        int64_t total = 0, k = 0;
        for (; k < n; k += 8) {
            __mmask8 some = n - k < 8 ? (__mmask8) ((1u << (n - k)) - 1) : (__mmask8) 0xFF;
            __m512i eight_codes = _mm512_maskz_loadu_epi64(some, codes + k);
            some = _mm512_mask_cmpge_epi64_mask(some, eight_codes, least);
            some = _mm512_mask_cmple_epi64_mask(some, eight_codes, most);
            if (some) {
                _mm256_mask_compressstoreu_epi32(found + total, some, places);
                total += __builtin_popcount(some);
            }
            places = _mm256_add_epi32(places, eight);
        }
        return total;
    }
    static int has_wide_scan(void)
    {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
    }
    #else
    #define slab_scan_wide slab_scan
    static int has_wide_scan(void) { return 0; }
    #endif

    /* The first of n ascending codes that is not less than a code. */
    static int64_t code_search(const int64_t* codes, int64_t n, int64_t code)
    {
        int64_t low = 0;
        while (n > 0) {
            int64_t half = n / 2;
            int is_less = codes[low + half] < code;
            low = is_less ? low + half + 1 : low;
            n = is_less ? n - half - 1 : half;
        }
        return low;
    }
    """
    enum:
        MOST_SLAB
    void float_codes(const int64_t* values, int64_t n, int64_t* codes) nogil
    void code_ends(const int64_t* codes, int64_t n, int64_t* least, int64_t* most) nogil
    int64_t slab_scan(
        const int64_t* codes, int64_t n, int64_t low, int64_t high, int32_t* found) nogil
    int64_t slab_scan_wide(
        const int64_t* codes, int64_t n, int64_t low, int64_t high, int32_t* found) nogil
    int has_wide_scan() nogil
    int64_t code_search(const int64_t* codes, int64_t n, int64_t code) nogil

cdef bint WIDE = has_wide_scan()

#: Rows of a slab, at most.
SLAB = MOST_SLAB


def value_codes(values):
    """Return the codes of int64 or float64 values, as int64."""
    cdef const int64_t[::1] bits
    cdef int64_t[::1] codes
    if values.dtype != np.float64:
        return np.ascontiguousarray(values, np.int64)
    bits = np.ascontiguousarray(values).view(np.int64)
    found = np.empty(len(values), np.int64)
    codes = found
    if len(values):
        float_codes(&bits[0], bits.shape[0], &codes[0])
    return found


@cython.final
cdef class Slabs:
    """Rows in slabs. Immutable. It refers to the values, and copies none."""

    cdef readonly Py_ssize_t count  # of rows
    cdef readonly Py_ssize_t slab   # rows of each, except for the last one
    cdef bint is_float, is_second_float
    cdef const int64_t[::1] values
    cdef const int64_t[::1] second
    cdef const int64_t[::1] places  # by row what is given for it; None: its own place
    cdef int64_t[::1] least         # by slab, of the first values
    cdef int64_t[::1] most

    def __init__(self, values, second, places=None, Py_ssize_t slab=MOST_SLAB):
        """``values`` and ``second``: of each row, int64 or float64; in each slab of ``slab`` rows
        the second values ascend. ``places``: what is given for each row, int64. Cost: one look at
        all values."""
        cdef Py_ssize_t begin, number, n
        assert 0 < slab <= MOST_SLAB and len(values) == len(second)
        self.count, self.slab = len(values), slab
        self.is_float, self.is_second_float = (
            each.dtype == np.float64 for each in (values, second)
        )
        self.values, self.second = (
            np.ascontiguousarray(each).view(np.int64) for each in (values, second)
        )
        self.places = places
        assert places is None or len(places) == self.count
        slabs = (self.count + slab - 1) // slab
        self.least, self.most = (np.empty(slabs, np.int64) for _ in range(2))
        with nogil:
            self._find_ends()

    cdef void _find_ends(self) noexcept nogil:
        cdef int64_t[MOST_SLAB] room
        cdef const int64_t* codes
        cdef Py_ssize_t number, n
        for number in range(self.least.shape[0]):
            n = self._size(number)
            codes = _codes(&self.values[number * self.slab], n, self.is_float, room)
            code_ends(codes, n, &self.least[number], &self.most[number])

    cdef inline Py_ssize_t _size(self, Py_ssize_t number) noexcept nogil:
        return min(self.slab, self.count - number * self.slab)


cdef inline const int64_t* _codes(
    const int64_t* values, Py_ssize_t n, bint is_float, int64_t* room
) noexcept nogil:
    if not is_float:
        return values
    float_codes(values, n, room)
    return room


cdef inline int64_t _code(int64_t value, bint is_float) noexcept nogil:
    cdef int64_t code = value
    if is_float:
        float_codes(&value, 1, &code)
    return code


@cython.final
cdef class SlabPairs:
    """Pairs of lefts and rows: each left has a range of first values, and one of second values. Not
    thread-safe."""

    cdef Slabs slabs
    cdef const int64_t[::1] lefts
    cdef const int64_t[::1] least
    cdef const int64_t[::1] most
    cdef const int64_t[::1] second_least
    cdef const int64_t[::1] second_most
    cdef bint is_by_most
    cdef Py_ssize_t number      # of the slab
    cdef bint is_begun          # whether the slab's lefts are known
    cdef bint is_read           # whether its codes are
    cdef Py_ssize_t at, stop    # lefts that may have pairs in it
    cdef Py_ssize_t edge        # where the end of the range lies that the lefts ascend by
    cdef const int64_t* codes   # of the slab
    cdef const int64_t* second_codes
    cdef int64_t[MOST_SLAB] room
    cdef int64_t[MOST_SLAB] second_room

    def __init__(
        self, Slabs slabs not None, lefts, least, most, second_least, second_most, bint is_by_most
    ):
        """
        Args:
            slabs: The rows.
            lefts: What is given for each left.
            least: Beside each, the least code of first values; the others likewise.
            is_by_most: Whether the lefts ascend by ``second_most``; else by ``second_least``.
        """
        self.slabs, self.is_by_most = slabs, is_by_most
        self.lefts, self.least, self.most = lefts, least, most
        self.second_least, self.second_most = second_least, second_most
        assert len(lefts) == len(least) == len(most) == len(second_least) == len(second_most)

    def next(self, Py_ssize_t most):
        """Return lefts and the rows beside them as two arrays, at most ``most`` and a slab of them;
        None at the end."""
        cdef int64_t[::1] lefts, rights
        cdef Py_ssize_t count
        if self.number >= self.slabs.least.shape[0] or self.lefts.shape[0] == 0:
            return None
        left_array, right_array = (np.empty(most + self.slabs.slab, np.int64) for _ in range(2))
        lefts, rights = left_array, right_array
        with nogil:
            count = self._fill(self.slabs, &lefts[0], &rights[0], most)
        return left_array[:count], right_array[:count]

    cdef Py_ssize_t _fill(
        self, Slabs slabs, int64_t* lefts, int64_t* rights, Py_ssize_t most
    ) noexcept nogil:
        """Go on until so many pairs are found; return how many there are."""
        cdef Py_ssize_t count = 0, i
        cdef int64_t least, greatest
        while self.number < slabs.least.shape[0]:
            if not self.is_begun:
                self._begin(slabs)
            least, greatest = slabs.least[self.number], slabs.most[self.number]
            while self.at < self.stop:
                if count >= most:
                    return count
                i = self.at
                self.at += 1
                if self.least[i] <= greatest and self.most[i] >= least:
                    count += self._give(slabs, i, least, greatest, lefts + count, rights + count)
            self.number += 1
            self.is_begun = False
        return count

    cdef void _begin(self, Slabs slabs) noexcept nogil:
        """Find the lefts whose range of second values may hold some of the slab."""
        cdef Py_ssize_t first = self.number * slabs.slab, n = self.lefts.shape[0]
        cdef Py_ssize_t last = first + slabs._size(self.number) - 1
        cdef int64_t code
        self.at, self.stop, self.edge = 0, n, 0
        self.is_begun, self.is_read = True, False
        if self.is_by_most:
            code = _code(slabs.second[first], slabs.is_second_float)
            self.at = code_search(&self.second_most[0], n, code)
        else:
            code = _code(slabs.second[last], slabs.is_second_float)
            self.stop = n
            if code < INT64_MAX:
                self.stop = code_search(&self.second_least[0], n, code + 1)

    cdef Py_ssize_t _give(
        self, Slabs slabs, Py_ssize_t i, int64_t least, int64_t greatest,
        int64_t* lefts, int64_t* rights,
    ) noexcept nogil:
        """Give the rows of the slab that a left matches; return how many."""
        cdef int32_t[MOST_SLAB + 8] found
        cdef Py_ssize_t first = self.number * slabs.slab, n = slabs._size(self.number)
        cdef Py_ssize_t begin = 0, end = n, k, total
        cdef const int64_t* codes
        if not self.is_read:
            self.codes = _codes(&slabs.values[first], n, slabs.is_float, self.room)
            self.second_codes = _codes(
                &slabs.second[first], n, slabs.is_second_float, self.second_room
            )
            self.is_read = True
        codes = self.second_codes
        if self.is_by_most:
            while self.edge < n and codes[self.edge] <= self.second_most[i]:
                self.edge += 1
            end = self.edge
            if end and codes[0] < self.second_least[i]:
                begin = code_search(codes, end, self.second_least[i])
        else:
            while self.edge < n and codes[self.edge] < self.second_least[i]:
                self.edge += 1
            begin = self.edge
            if begin < n and codes[n - 1] > self.second_most[i]:
                # Some are greater, so it is not the greatest code.
                end = begin + code_search(codes + begin, n - begin, self.second_most[i] + 1)
        total = end - begin
        if total <= 0:
            return 0
        first += begin
        if self.least[i] <= least and self.most[i] >= greatest:
            for k in range(total):
                rights[k] = first + k
        else:
            if WIDE:
                total = slab_scan_wide(
                    self.codes + begin, total, self.least[i], self.most[i], found
                )
            else:
                total = slab_scan(self.codes + begin, total, self.least[i], self.most[i], found)
            for k in range(total):
                rights[k] = first + found[k]
        for k in range(total):
            lefts[k] = self.lefts[i]
        if slabs.places is not None:
            for k in range(total):
                rights[k] = slabs.places[rights[k]]
        return total
