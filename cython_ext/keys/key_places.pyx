"""KeyPlaces: places of rows by key, and of each asked key the last place up to a limit.

Both keys and places ascend, so a batch of asked keys is looked up in one walk. Two of them are merged
in one walk, too.
"""

cimport cython
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch

import numpy as np

cdef extern from *:
    """
    #include <stdint.h>
    /* How many of n ascending places are not greater than a limit. */
    static int64_t places_upto(const int64_t* places, int64_t n, int64_t limit)
    {
        const int64_t* low = places;
        while (n > 1) {
            int64_t half = n / 2;
            low += (low[half - 1] <= limit) ? half : 0;
            n -= half;
        }
        return low - places + (n == 1 && *low <= limit);
    }

    /* The same, if it is known that some are not: it gallops from there. */
    static int64_t places_upto_from(const int64_t* places, int64_t n, int64_t known, int64_t limit)
    {
        int64_t step = 1;
        while (known + step <= n && places[known + step - 1] <= limit) {
            known += step;
            step *= 2;
        }
        step = step < n - known ? step : n - known;
        return known + places_upto(places + known, step, limit);
    }
    """
    int64_t places_upto_from(
        const int64_t* places, int64_t n, int64_t known, int64_t limit) nogil
    int64_t places_upto(const int64_t* places, int64_t n, int64_t limit) nogil
    void __builtin_prefetch(const void*) nogil

cdef enum:
    TOGETHER = 16  # asked keys whose memory is asked for before it is read


@cython.final
cdef class KeyPlaces:
    """Immutable. Keys are distinct and ascend, and so do the places of each key; equal ones come in the
    order of their rows."""

    cdef readonly KeyBatch keys         # None: all rows lie under one
    cdef const int64_t[::1] starts
    cdef const int64_t[::1] places

    def __init__(self, KeyBatch keys, starts, places):
        """``starts``: key g has ``places[starts[g]:starts[g + 1]]``; int64, as the places are."""
        self.keys, self.starts, self.places = keys, starts, places
        cdef Py_ssize_t count = 1 if keys is None else keys.n
        if self.starts.shape[0] != count + 1 or self.starts[count] != self.places.shape[0]:
            raise ValueError(f"{self.starts.shape[0]} starts of {self.places.shape[0]} places")

    def __len__(self):
        return self.places.shape[0]

    @property
    def nbytes(self):
        """Bytes of memory, roughly."""
        held = 8 * (self.starts.shape[0] + self.places.shape[0])
        return held if self.keys is None else held + self.keys.nbytes

    def improve(
        self, KeyBatch asked, const int64_t[::1] limits not None, int64_t[::1] best not None,
        int64_t[::1] rows not None, int64_t[::1] sources not None, int64_t source
    ):
        """Look for the last place of each asked key up to its limit, where it is not before ``best``.

        Args:
            asked: The keys; None: those of all rows.
            limits: Beside each key.
            best: The places found so far; of a key without one ``rows`` is -1.
            rows: The rows with these places.
            sources: Where these rows are.
            source: What becomes the source of a row that is found.

        Cost: one walk over the keys, and a binary search a key.
        """
        cdef Py_ssize_t n = limits.shape[0]
        if not n == best.shape[0] == rows.shape[0] == sources.shape[0]:
            raise ValueError(f"{n} limits, {best.shape[0]} places, {rows.shape[0]} rows")
        if (asked is None) != (self.keys is None) or (asked is not None and asked.n != n):
            raise ValueError(f"keys of another kind than these, or not {n} of them")
        if n and self.places.shape[0]:
            with nogil:
                self._improve(
                    asked, &limits[0], n, &best[0], &rows[0], &sources[0], source
                )

    cdef void _improve(
        self, KeyBatch asked, const int64_t* limits, Py_ssize_t n, int64_t* best, int64_t* rows,
        int64_t* sources, int64_t source
    ) noexcept nogil:
        cdef Py_ssize_t k = 0, i, j, held, group = 0
        cdef bint is_known = <void*> asked == <void*> None
        cdef Py_ssize_t count = n if is_known else asked.n_valid
        cdef int64_t[TOGETHER] start, size
        cdef Py_ssize_t[TOGETHER] at
        cdef int64_t found
        while k < count:
            held = 0
            for j in range(k, min(count, k + TOGETHER)):
                i = j
                if <void*> asked != <void*> None:
                    i = asked.order[j]
                    if j + TOGETHER < count:
                        _prefetch_key(asked, asked.order[j + TOGETHER])
                    if j == 0 or not _are_equal(asked, asked.order[j - 1], asked, i):
                        if group < self.keys.n:
                            group = self._seek(asked, i, group)
                        is_known = group < self.keys.n and _are_equal(self.keys, group, asked, i)
                    if not is_known:
                        continue
                at[held], start[held] = i, self.starts[group]
                size[held] = self.starts[group + 1] - start[held]
                __builtin_prefetch(&self.places[start[held] + size[held] // 2])
                __builtin_prefetch(&limits[i])
                __builtin_prefetch(&rows[i])
                held += 1
            for j in range(held):
                i = at[j]
                found = start[j] - 1 + places_upto(&self.places[start[j]], size[j], limits[i])
                if found >= start[j] and (rows[i] < 0 or self.places[found] >= best[i]):
                    best[i], rows[i], sources[i] = self.places[found], found, source
            k += TOGETHER

    def between(self, const int64_t[::1] least not None, const int64_t[::1] most not None):
        """Return where the places from ``least`` to ``most`` begin and end among all: two int64 arrays.

        All rows have to lie under one key. Cost: two binary searches an item. Where ``least`` ascends,
        one walk.
        """
        cdef int64_t[::1] first, stop
        cdef Py_ssize_t i, n = least.shape[0], count = self.places.shape[0]
        cdef int64_t known
        if self.keys is not None or most.shape[0] != n:
            raise ValueError(f"rows under several keys, or not {n} greatest places")
        first_found, stop_found = np.zeros(n, np.int64), np.zeros(n, np.int64)
        first, stop = first_found, stop_found
        if count:
            with nogil:
                for i in range(n):
                    known = first[i - 1] if i and least[i] >= least[i - 1] else 0
                    if least[i] > INT64_MIN:
                        known = places_upto_from(&self.places[0], count, known, least[i] - 1)
                    first[i] = known
                    stop[i] = places_upto_from(&self.places[0], count, known, most[i])
        return first_found, stop_found

    cdef Py_ssize_t _seek(self, KeyBatch asked, Py_ssize_t i, Py_ssize_t start) noexcept nogil:
        """The first key from one on that is not less than an asked one."""
        cdef Py_ssize_t low = start, high = start, middle, step = 1
        while high < self.keys.n and _order(self.keys, high, asked, i) < 0:
            low = high + 1
            high += step
            step *= 2
        high = min(high, self.keys.n)
        while low < high:
            middle = low + (high - low) // 2
            if _order(self.keys, middle, asked, i) < 0:
                low = middle + 1
            else:
                high = middle
        return low

    def precedes(self, KeyPlaces newer not None):
        """Whether the newer ones simply follow these."""
        cdef int order = 0
        if not (self.places.shape[0] and newer.places.shape[0]):
            return True
        if self.keys is not None:
            order = _order(self.keys, self.keys.n - 1, newer.keys, 0)
        return order < 0 or (
            order == 0 and self.places[self.places.shape[0] - 1] <= newer.places[0]
        )

    def merged(self, KeyPlaces newer not None):
        """Return the places of both, and where they come from: row i is row ``order[i]`` of these
        followed by the newer ones (int64; None: all stay where they are). Of equal places the older
        comes first."""
        cdef Py_ssize_t total = self.places.shape[0] + newer.places.shape[0]
        cdef Py_ssize_t most = self.starts.shape[0] + newer.starts.shape[0]
        cdef KeyBatch keys = None
        cdef Py_ssize_t count = 1
        cdef int64_t[::1] starts, places, order, olds, news
        cdef int64_t* order_at = NULL
        if (self.keys is None) != (newer.keys is None):
            raise ValueError("keys of two kinds")
        starts_found, places_found = (np.empty(size, np.int64) for size in (most, total))
        order_found = None
        # Of each key, which one of either it is; -1: of none.
        olds, news = np.zeros(most, np.int64), np.zeros(most, np.int64)
        starts, places = starts_found, places_found
        if not self.precedes(newer):
            order = order_found = np.empty(total, np.int64)
            order_at = &order[0]
        if self.keys is not None:
            keys = KeyBatch.__new__(KeyBatch)
            with nogil:
                count = self._match(newer, &olds[0], &news[0])
                self._take_keys(newer, keys, count, &olds[0], &news[0])
            keys.types = self.keys.types
        if total:
            with nogil:
                self._merge(newer, count, &olds[0], &news[0], &starts[0], &places[0], order_at)
        else:
            starts_found[:] = 0
        return KeyPlaces(keys, starts_found[: count + 1].copy(), places_found), order_found

    cdef Py_ssize_t _match(
        self, KeyPlaces newer, int64_t* olds, int64_t* news
    ) noexcept nogil:
        """Pair the keys of both; return how many different ones there are."""
        cdef Py_ssize_t a = 0, b = 0, count = 0
        cdef int order
        while a < self.keys.n or b < newer.keys.n:
            if a == self.keys.n:
                order = 1
            elif b == newer.keys.n:
                order = -1
            else:
                order = _order(self.keys, a, newer.keys, b)
            olds[count] = a if order <= 0 else -1
            news[count] = b if order >= 0 else -1
            a += order <= 0
            b += order >= 0
            count += 1
        return count

    cdef int _take_keys(
        self, KeyPlaces newer, KeyBatch keys, Py_ssize_t count, const int64_t* olds,
        const int64_t* news
    ) except -1 nogil:
        cdef Py_ssize_t g
        keys.take_rows(count)
        for g in range(count):
            if olds[g] >= 0:
                keys.offsets[g + 1] = _size(self.keys, olds[g])
            else:
                keys.offsets[g + 1] = _size(newer.keys, news[g])
        keys.take_data()
        for g in range(count):
            keys.valid[g] = 1
            keys.order[g] = <uint32_t> g
            if olds[g] >= 0:
                keys.hashes[g] = self.keys.hashes[olds[g]]
                memcpy(_start(keys, g), _start(self.keys, olds[g]), _size(keys, g))
            else:
                keys.hashes[g] = newer.keys.hashes[news[g]]
                memcpy(_start(keys, g), _start(newer.keys, news[g]), _size(keys, g))
        keys.n_valid = count
        return 0

    cdef void _merge(
        self, KeyPlaces newer, Py_ssize_t count, const int64_t* olds, const int64_t* news,
        int64_t* starts, int64_t* places, int64_t* order
    ) noexcept nogil:
        cdef Py_ssize_t g, out = 0, before = self.places.shape[0]
        cdef int64_t a, a_end, b, b_end
        for g in range(count):
            starts[g] = out
            a = a_end = b = b_end = 0
            if olds[g] >= 0:
                a, a_end = self.starts[olds[g]], self.starts[olds[g] + 1]
            if news[g] >= 0:
                b, b_end = newer.starts[news[g]], newer.starts[news[g] + 1]
            while a < a_end or b < b_end:
                if b == b_end or (a < a_end and self.places[a] <= newer.places[b]):
                    places[out] = self.places[a]
                    if order != NULL:
                        order[out] = a
                    a += 1
                else:
                    places[out] = newer.places[b]
                    if order != NULL:
                        order[out] = before + b
                    b += 1
                out += 1
        starts[count] = out


cdef inline void _prefetch_key(KeyBatch keys, Py_ssize_t i) noexcept nogil:
    __builtin_prefetch(&keys.offsets[i])
    __builtin_prefetch(&keys.hashes[i])


cdef inline uint8_t* _start(KeyBatch keys, Py_ssize_t i) noexcept nogil:
    return keys.data + keys.offsets[i] + STREAM_BYTES


cdef inline size_t _size(KeyBatch keys, Py_ssize_t i) noexcept nogil:
    return keys.offsets[i + 1] - keys.offsets[i] - STREAM_BYTES


cdef inline int _order(KeyBatch a, Py_ssize_t i, KeyBatch b, Py_ssize_t j) noexcept nogil:
    return compare(_start(a, i), _size(a, i), _start(b, j), _size(b, j))


cdef inline bint _are_equal(KeyBatch a, Py_ssize_t i, KeyBatch b, Py_ssize_t j) noexcept nogil:
    return a.hashes[i] == b.hashes[j] and _order(a, i, b, j) == 0
