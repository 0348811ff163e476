"""Inline helpers that all modules share: varints, fixed-width integers, growable buffers."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport realloc, free
from libc.string cimport memcmp, memcpy


cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    uint64_t __builtin_bswap64(uint64_t) nogil


cdef enum:
    STREAM_BYTES = 2  # of a stored key, in front: the stream's number; no key has less


cdef struct Buffer:
    uint8_t* data
    size_t size
    size_t capacity


cdef inline int try_reserve(Buffer* buffer, size_t extra) noexcept nogil:
    """Make room for `extra` more bytes, or return -1. A buffer grows by half, so appending has
    amortised cost. An empty buffer grows by `extra` only, which may be one row of a quarter of the
    memory cap."""
    cdef size_t wanted = buffer.size + extra
    cdef size_t capacity
    cdef void* data
    if wanted <= buffer.capacity:
        return 0
    capacity = buffer.capacity + (buffer.capacity >> 1)
    if capacity < wanted or buffer.size == 0:
        capacity = wanted
    data = realloc(buffer.data, capacity)
    if data == NULL:
        return -1
    buffer.data = <uint8_t*> data
    buffer.capacity = capacity
    return 0


cdef inline int reserve(Buffer* buffer, size_t extra) except -1 nogil:
    """Make room for `extra` more bytes; raise MemoryError if there is none."""
    if try_reserve(buffer, extra):
        with gil:
            raise MemoryError(f"cannot allocate {buffer.size + extra} bytes")
    return 0


cdef inline void release(Buffer* buffer) noexcept nogil:
    free(buffer.data)
    buffer.data = NULL
    buffer.size = 0
    buffer.capacity = 0


cdef inline void shrink(Buffer* buffer, size_t kept) noexcept nogil:
    """Free the memory of an empty buffer if it is more than `kept`."""
    if buffer.capacity > kept and buffer.size == 0:
        release(buffer)


cdef inline int put_bytes(Buffer* buffer, const void* data, size_t size) except -1 nogil:
    reserve(buffer, size)
    if size:
        memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef inline void copy_key(uint8_t* target, const uint8_t* source, size_t size) noexcept nogil:
    """Copy a key as memcpy does, without the call for keys of 8 to 16 bytes, which are the most
    common."""
    cdef uint64_t first, last
    if 8 <= size <= 16:
        memcpy(&first, source, 8)
        memcpy(&last, source + size - 8, 8)
        memcpy(target, &first, 8)
        memcpy(target + size - 8, &last, 8)
    elif size:
        memcpy(target, source, size)


cdef inline void copy_suffix(uint8_t* target, const uint8_t* source, size_t size) noexcept nogil:
    """Copy the suffix of a key that it does not share with the previous one, usually a few bytes.
    Eight bytes are always read and written, so both sides need room for them."""
    if size <= 8:
        memcpy(target, source, 8)
    else:
        memcpy(target, source, size)


cdef inline uint8_t* write_varint(uint8_t* target, uint64_t value) noexcept nogil:
    """Write a varint and return the next byte; there must be room for ten bytes."""
    while value >= 0x80:
        target[0] = <uint8_t> (value | 0x80)
        target += 1
        value >>= 7
    target[0] = <uint8_t> value
    return target + 1


cdef inline int put_varint(Buffer* buffer, uint64_t value) except -1 nogil:
    reserve(buffer, 10)
    buffer.size = write_varint(buffer.data + buffer.size, value) - buffer.data
    return 0


cdef inline int put_u32(Buffer* buffer, uint32_t value) except -1 nogil:
    return put_bytes(buffer, &value, 4)


cdef inline int put_u64(Buffer* buffer, uint64_t value) except -1 nogil:
    return put_bytes(buffer, &value, 8)


cdef inline bint lies_within(uint64_t offset, uint64_t size, uint64_t whole) noexcept nogil:
    """Test numbers read from a file, whose sum may exceed 64 bits."""
    return size <= whole and offset <= whole - size


cdef inline uint32_t load_u32(const uint8_t* data) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, data, 4)
    return value


cdef inline uint64_t load_u64(const uint8_t* data) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, data, 8)
    return value


cdef inline const uint8_t* get_varint(
    const uint8_t* data, const uint8_t* end, uint64_t* value
) noexcept nogil:
    """Return the byte after the varint; NULL if it passes `end` or 64 bits."""
    cdef uint64_t result = 0
    cdef int shift = 0
    cdef uint8_t byte
    if data == NULL:
        return NULL
    if data < end and data[0] < 0x80:  # nearly always
        value[0] = data[0]
        return data + 1
    while data < end and shift < 64:
        byte = data[0]
        data += 1
        result |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            value[0] = result
            return data
        shift += 7
    return NULL


cdef inline int compare(
    const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size
) noexcept nogil:
    """Compare byte strings: by bytes, then the shorter first. It compares word by word, because a
    call of memcmp takes longer than comparing a key."""
    cdef size_t shared = a_size if a_size < b_size else b_size
    cdef size_t place = 0
    cdef uint64_t ours, theirs
    cdef int found
    if shared < 8:
        found = memcmp(a, b, shared)
        return found if found else (a_size > b_size) - (a_size < b_size)
    while place < shared:
        place = place if place + 8 <= shared else shared - 8  # the last word may overlap
        ours = load_u64(a + place)
        theirs = load_u64(b + place)
        if ours != theirs:
            return 1 if __builtin_bswap64(ours) > __builtin_bswap64(theirs) else -1
        place += 8
    return (a_size > b_size) - (a_size < b_size)


cdef inline size_t shared_prefix(
    const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size
) noexcept nogil:
    """Return the length of the common prefix."""
    cdef size_t limit = a_size if a_size < b_size else b_size
    cdef size_t shared = 0
    cdef uint64_t differing
    while shared + 8 <= limit:
        differing = load_u64(a + shared) ^ load_u64(b + shared)
        if differing:
            return shared + <size_t> (__builtin_ctzll(differing) >> 3)  # little-endian, as all here
        shared += 8
    while shared < limit and a[shared] == b[shared]:
        shared += 1
    return shared


cdef inline uint64_t mix_stream(uint64_t hash, uint32_t stream) noexcept nogil:
    """Return the hash of a stored key: that of the typed key, mixed with the stream's number."""
    hash ^= (<uint64_t> stream + 1) * <uint64_t> 0x9E3779B97F4A7C15
    hash ^= hash >> 32
    hash *= <uint64_t> 0xD6E8FEB86659FD93
    return hash ^ (hash >> 32)
