"""Stable sort of byte strings: radix sort by eight bytes at a time, then merge sort by memcmp.

A sorted batch costs one comparison per key. Most keys differ in their first eight bytes, which one
radix sort orders without reading the keys again. Runs of equal prefixes are sorted by the next
eight bytes, and after DEEPEST bytes (long common prefixes are rare) by comparison.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport compare

cdef extern from *:
    uint64_t __builtin_bswap64(uint64_t) noexcept nogil

cdef enum:
    FEW = 48  # insertion sort is faster below
    DEEPEST = 64  # bytes looked at by radix sort

cdef struct Entry:
    uint64_t prefix
    uint32_t position

cdef struct Keys:
    const uint8_t* data
    const uint64_t* offsets
    uint64_t skip
    Entry* entries
    Entry* scratch


cdef int sort_keys(
    const uint8_t* data, const uint64_t* offsets, uint64_t skip, uint32_t* order, Py_ssize_t n
) noexcept nogil:
    cdef Keys keys
    cdef Py_ssize_t i
    if n < 2:
        return 0
    keys.data = data
    keys.offsets = offsets
    keys.skip = skip
    keys.entries = <Entry*> malloc(n * sizeof(Entry))
    keys.scratch = <Entry*> malloc(n * sizeof(Entry))
    if keys.entries == NULL or keys.scratch == NULL:
        free(keys.entries)
        free(keys.scratch)
        return -1
    for i in range(n):
        keys.entries[i].position = order[i]
    if not are_sorted(&keys, n):
        sort_run(&keys, 0, n, 0)
        for i in range(n):
            order[i] = keys.entries[i].position
    free(keys.entries)
    free(keys.scratch)
    return 0


cdef bint are_sorted(const Keys* keys, Py_ssize_t n) noexcept nogil:
    """Test whether keys are sorted: probe batches that were grouped by key are. Of others only a
    few keys are read."""
    cdef Py_ssize_t i
    for i in range(1, n):
        if after(keys, &keys.entries[i - 1], &keys.entries[i]):
            return False
    return True


cdef inline uint64_t size_of(const Keys* keys, uint32_t i) noexcept nogil:
    return keys.offsets[i + 1] - keys.offsets[i] - keys.skip


cdef inline uint64_t load_prefix(const Keys* keys, uint32_t i, uint64_t depth) noexcept nogil:
    """Return eight bytes from `depth` on, big-endian, with zeros after the key's end."""
    cdef uint64_t value = 0
    cdef uint64_t size = size_of(keys, i)
    if size >= depth + 8:
        memcpy(&value, keys.data + keys.offsets[i] + keys.skip + depth, 8)
    elif size > depth:
        memcpy(&value, keys.data + keys.offsets[i] + keys.skip + depth, size - depth)
    return __builtin_bswap64(value)


cdef void sort_run(Keys* keys, Py_ssize_t low, Py_ssize_t high, uint64_t depth) noexcept nogil:
    """Sort entries[low:high], whose keys are equal up to `depth`."""
    cdef Py_ssize_t i
    cdef Py_ssize_t start
    for i in range(low, high):
        keys.entries[i].prefix = load_prefix(keys, keys.entries[i].position, depth)
    if high - low < FEW:
        insertion_sort(keys.entries + low, high - low)
    else:
        radix_sort(keys.entries + low, keys.scratch + low, high - low)
    start = low
    for i in range(low + 1, high + 1):
        if i == high or keys.entries[i].prefix != keys.entries[start].prefix:
            if i - start > 1:
                settle_ties(keys, start, i, depth + 8)
            start = i


cdef void settle_ties(Keys* keys, Py_ssize_t low, Py_ssize_t high, uint64_t depth) noexcept nogil:
    """Sort entries[low:high], whose prefixes are equal up to `depth`, zeros appended."""
    cdef uint64_t size
    cdef uint64_t shortest = size_of(keys, keys.entries[low].position)
    cdef uint64_t longest = shortest
    cdef Py_ssize_t i
    for i in range(low + 1, high):
        size = size_of(keys, keys.entries[i].position)
        shortest = min(shortest, size)
        longest = max(longest, size)
    if longest <= depth and shortest == longest:
        return
    if shortest >= depth and depth < DEEPEST:
        sort_run(keys, low, high, depth)
    else:
        merge_sort(keys, low, high)


cdef void insertion_sort(Entry* entries, Py_ssize_t n) noexcept nogil:
    cdef Entry entry
    cdef Py_ssize_t i
    cdef Py_ssize_t k
    for i in range(1, n):
        entry = entries[i]
        k = i
        while k > 0 and entries[k - 1].prefix > entry.prefix:
            entries[k] = entries[k - 1]
            k -= 1
        entries[k] = entry


cdef void radix_sort(Entry* entries, Entry* scratch, Py_ssize_t n) noexcept nogil:
    """By prefix, from the last byte on; bytes that all keys share cost nothing."""
    cdef uint32_t counts[8][256]
    cdef Entry* source = entries
    cdef Entry* target = scratch
    cdef uint64_t prefix
    cdef uint32_t total
    cdef uint32_t count
    cdef uint32_t* column
    cdef Py_ssize_t i
    cdef int byte
    cdef int shift
    memset(counts, 0, sizeof(counts))
    for i in range(n):
        prefix = entries[i].prefix
        for byte in range(8):
            counts[byte][(prefix >> (8 * byte)) & 0xFF] += 1
    for byte in range(8):
        column = counts[byte]
        shift = 8 * byte
        if column[(source[0].prefix >> shift) & 0xFF] == n:
            continue
        total = 0
        for i in range(256):
            count = column[i]
            column[i] = total
            total += count
        for i in range(n):
            prefix = (source[i].prefix >> shift) & 0xFF
            target[column[prefix]] = source[i]
            column[prefix] += 1
        source, target = target, source
    if source != entries:
        memcpy(entries, source, n * sizeof(Entry))


cdef inline bint after(const Keys* keys, const Entry* a, const Entry* b) noexcept nogil:
    """Whether key a is greater than key b."""
    return compare(
        keys.data + keys.offsets[a.position] + keys.skip,
        size_of(keys, a.position),
        keys.data + keys.offsets[b.position] + keys.skip,
        size_of(keys, b.position),
    ) > 0


cdef void merge_sort(Keys* keys, Py_ssize_t low, Py_ssize_t high) noexcept nogil:
    """Bottom-up and stable. Halves already in order (one hot key) cost one comparison."""
    cdef Entry* source = keys.entries + low
    cdef Entry* target = keys.scratch + low
    cdef Py_ssize_t n = high - low
    cdef Py_ssize_t width = 1
    cdef Py_ssize_t start
    cdef Py_ssize_t middle
    cdef Py_ssize_t end
    while width < n:
        start = 0
        while start < n:
            middle = min(start + width, n)
            end = min(middle + width, n)
            merge(keys, source, target, start, middle, end)
            start = end
        source, target = target, source
        width *= 2
    if source != keys.entries + low:
        memcpy(keys.entries + low, source, n * sizeof(Entry))


cdef void merge(
    const Keys* keys,
    const Entry* source,
    Entry* target,
    Py_ssize_t start,
    Py_ssize_t middle,
    Py_ssize_t end,
) noexcept nogil:
    cdef Py_ssize_t left = start
    cdef Py_ssize_t right = middle
    cdef Py_ssize_t i
    if middle == end or not after(keys, &source[middle - 1], &source[middle]):
        memcpy(target + start, source + start, (end - start) * sizeof(Entry))
        return
    for i in range(start, end):
        if left < middle and (right == end or not after(keys, &source[left], &source[right])):
            target[i] = source[left]
            left += 1
        else:
            target[i] = source[right]
            right += 1
