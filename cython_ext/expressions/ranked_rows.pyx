"""Which rows of a stretch have a rank in a range, without a look at each of them.

Rows have ranks by a second column. Small blocks of rows know their least and greatest rank, so most
of them are passed over, and the others are compared row by row. The ranks of large blocks are
sorted: the matching ones are found by two binary searches. Of all rows, ranks are sorted anyway.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t

import numpy as np

cdef extern from *:
    """
    #include <stdint.h>
    #define RANK_BLOCK 256

    /* The same code for each set of instructions: whole numbers, so the results are the same. */
    #if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
    #define RANK_CLONES __attribute__((target_clones("avx2", "default")))
    #else
    #define RANK_CLONES
    #endif

    /* The places of ranks from low to below high among n of them; returns how many. */
    RANK_CLONES static int64_t rank_scan(
        const int32_t* ranks, int64_t n, int32_t low, int32_t high, int32_t* found)
    {
        int32_t held[RANK_BLOCK];
        uint32_t width = (uint32_t) high - (uint32_t) low;
        int64_t total = 0;
        for (int64_t k = 0; k < n; k++)
            held[k] = (uint32_t) ranks[k] - (uint32_t) low < width;
        for (int64_t k = 0; k < n; k++) {
            found[total] = (int32_t) k;
            total += held[k];
        }
        return total;
    }

    /* The first of n ascending ranks that is not less than a rank. */
    static int64_t rank_search(const int32_t* ranks, int64_t n, int32_t rank)
    {
        int64_t low = 0;
        while (n > 0) {
            int64_t half = n / 2;
            int is_less = ranks[low + half] < rank;
            low = is_less ? low + half + 1 : low;
            n = is_less ? n - half - 1 : half;
        }
        return low;
    }
    """
    enum:
        RANK_BLOCK
    int64_t rank_scan(
        const int32_t* ranks, int64_t n, int32_t low, int32_t high, int32_t* found) nogil
    int64_t rank_search(const int32_t* ranks, int64_t n, int32_t rank) nogil


@cython.final
cdef class RankedRows:
    """Rows by their ranks. Immutable."""

    cdef readonly Py_ssize_t count  # of rows
    cdef Py_ssize_t small, large
    cdef const int32_t[::1] ranks   # by row
    cdef const int32_t[::1] places  # by rank the row
    cdef const int32_t[::1] least   # by small block
    cdef const int32_t[::1] most
    cdef const int32_t[::1] blocks  # the ranks of each large block, ascending

    def __init__(self, places, Py_ssize_t count, Py_ssize_t small=256, Py_ssize_t large=4096):
        """``places``: by rank the row (int64), of ``count`` rows; rows that are not among them have
        no rank. A large block is a multiple of a small one, which has 256 rows at most. Cost: a
        sort of each large block."""
        assert 0 < small <= RANK_BLOCK and large % small == 0
        given = np.ascontiguousarray(places, np.int32)
        ranks = np.full((count + large - 1) // large * large, 0x7FFFFFFF, np.int32)
        ranks[given] = np.arange(len(given), dtype=np.int32)
        by_small = ranks.reshape(-1, small)
        self.count, self.small, self.large = count, small, large
        self.ranks, self.places = ranks, given
        self.least, self.most = by_small.min(axis=1), by_small.max(axis=1)
        self.blocks = np.sort(ranks.reshape(-1, large), axis=1).ravel()


@cython.final
cdef class RankedPairs:
    """Pairs of lefts and rows: each left has a stretch of rows, and a range of ranks. Not
    thread-safe."""

    cdef RankedRows rows
    cdef const int64_t[::1] first
    cdef const int64_t[::1] stop
    cdef const int64_t[::1] low
    cdef const int64_t[::1] high
    cdef Py_ssize_t left, row  # where the search goes on
    cdef bint is_begun         # whether ``row`` is one of the left's
    cdef Py_ssize_t at, end    # ranks in the range of a block, or of all rows, not given yet
    cdef bint is_of_block

    def __init__(self, RankedRows rows not None, first, stop, low, high):
        """Of each left, its first row and the end of its rows, and its least rank and the end of
        its ranks; all are int64."""
        self.rows = rows
        self.first, self.stop, self.low, self.high = first, stop, low, high
        count = self.first.shape[0]
        assert self.stop.shape[0] == self.low.shape[0] == self.high.shape[0] == count
        if count:
            assert 0 <= np.min(first) and np.max(stop) <= rows.count
            assert 0 <= np.min(low) and np.max(high) <= len(rows.places)

    def next(self, Py_ssize_t most):
        """Return places of lefts and the rows beside them as two arrays, at most ``most`` and a
        small block; None at the end."""
        cdef int64_t[::1] lefts, rights
        cdef Py_ssize_t count
        if self.left >= self.first.shape[0]:
            return None
        left_array, right_array = (np.empty(most + RANK_BLOCK, np.int64) for _ in range(2))
        lefts, rights = left_array, right_array
        with nogil:
            count = self._fill(self.rows, lefts, rights, most)
        return left_array[:count], right_array[:count]

    cdef Py_ssize_t _fill(
        self, RankedRows rows, int64_t[::1] lefts, int64_t[::1] rights, Py_ssize_t most
    ) noexcept nogil:
        """Go on until so many pairs are found; return how many there are."""
        cdef Py_ssize_t count = 0, i, row, stop, block
        cdef int32_t low, high
        while self.left < self.first.shape[0]:
            if self.at < self.end:
                count += self._give(&lefts[count], &rights[count], most - count)
            if count >= most:
                return count
            i = self.left
            if not self.is_begun:
                self.row = self.first[i]
                self.is_begun = True
            row, stop = self.row, self.stop[i]
            low, high = <int32_t> self.low[i], <int32_t> self.high[i]
            if row >= stop or low >= high:
                self.left += 1
                self.is_begun = False
            elif row == 0 and stop == rows.count:
                self.at, self.end, self.is_of_block = low, high, False
                self.row = stop
            elif row % rows.large == 0 and row + rows.large <= stop:
                self.row = row + rows.large
                self.at = row + rank_search(&rows.blocks[row], rows.large, low)
                self.end = row + rank_search(&rows.blocks[row], rows.large, high)
                self.is_of_block = True
            else:
                block = row // rows.small
                self.row = min(stop, (block + 1) * rows.small)
                if rows.least[block] < high and rows.most[block] >= low:
                    count += self._scan(&lefts[count], &rights[count], row, low, high)
        return count

    cdef Py_ssize_t _give(self, int64_t* lefts, int64_t* rights, Py_ssize_t most) noexcept nogil:
        """Give ranks that are known to be in the range; return how many."""
        cdef Py_ssize_t n = min(most, self.end - self.at), k
        cdef const int32_t* places = &self.rows.places[0]
        cdef const int32_t* ranks = &self.rows.blocks[self.at]
        for k in range(n):
            lefts[k] = self.left
        if self.is_of_block:
            for k in range(n):
                rights[k] = places[ranks[k]]
        else:
            for k in range(n):
                rights[k] = places[self.at + k]
        self.at += n
        return n

    cdef Py_ssize_t _scan(
        self, int64_t* lefts, int64_t* rights, Py_ssize_t row, int32_t low, int32_t high
    ) noexcept nogil:
        """Give the rows of a part of a small block; return how many."""
        cdef int32_t[RANK_BLOCK + 1] found
        cdef Py_ssize_t n = rank_scan(&self.rows.ranks[row], self.row - row, low, high, found), k
        for k in range(n):
            lefts[k] = self.left
            rights[k] = row + found[k]
        return n
