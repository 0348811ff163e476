"""Byte planes, bit-packed: of bytes of equal meaning, only the low bits in which they differ are
kept.

Shuffled rows are planes, one per byte of a row. Planes of high bytes are constant, some differ in a
few low bits, and only the rest is noise. A packed plane has the number of its varying bits (its
*width*), the bits that all its bytes share, and the varying bits side by side. That takes half the
time of LZ4, which looks for matches that such bytes do not have (bench/README.md).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport load_u32, load_u64

cdef enum:
    PIECE = 32  # bytes packed together; what is over goes in pieces of 8
    SMALL_PIECE = 8
    WHOLE = 8  # the width of a plane that is stored as it is

cdef extern from *:
    """
    #define LSM_EACH 0x0101010101010101ull
    """
    const uint64_t EACH "LSM_EACH"  # times a byte: that byte eight times
    int __builtin_clz(unsigned int) nogil


cdef inline size_t _size_of(size_t size, int width) noexcept nogil:
    """Return the size of a packed plane."""
    if width == WHOLE:
        return size
    return 1 + (size + SMALL_PIECE - 1) // SMALL_PIECE * width


cdef inline int _width(const uint8_t* plane, size_t size) noexcept nogil:
    """Return how many low bits differ, or WHOLE if packing would not save a byte."""
    cdef uint64_t first = EACH * plane[0], differing = 0
    cdef size_t i, words = size // 8
    cdef int width = 0
    for i in range(words):
        differing |= load_u64(plane + 8 * i) ^ first
    for i in range(8 * words, size):
        differing |= plane[i] ^ plane[0]
    if differing:
        differing |= differing >> 32
        differing |= differing >> 16
        differing |= differing >> 8
        width = 32 - __builtin_clz(<uint32_t> (differing & 0xFF))
    if width == 7 or _size_of(size, width) > size:
        return WHOLE
    return width


cdef inline void _put_word(uint8_t* target, uint64_t word) noexcept nogil:
    memcpy(target, &word, 8)


cdef inline uint8_t* _pack_piece(const uint8_t* source, int width, uint8_t* target) noexcept nogil:
    """Pack 32 bytes: fields of 4, 2 and 1 bits, of which `width` is the sum. A byte has the fields
    of 2, 4 or 8 bytes at equal distances, so that whole words are packed at once."""
    cdef uint64_t a = load_u64(source), b = load_u64(source + 8)
    cdef uint64_t c = load_u64(source + 16), d = load_u64(source + 24)
    cdef uint64_t fields
    cdef uint32_t bits
    if width & 4:
        _put_word(target, (a & (EACH * 15)) | ((c & (EACH * 15)) << 4))
        _put_word(target + 8, (b & (EACH * 15)) | ((d & (EACH * 15)) << 4))
        target += 16
        a >>= 4
        b >>= 4
        c >>= 4
        d >>= 4
    if width & 2:
        fields = (a & (EACH * 3)) | ((b & (EACH * 3)) << 2)
        _put_word(target, fields | ((c & (EACH * 3)) << 4) | ((d & (EACH * 3)) << 6))
        target += 8
        a >>= 2
        b >>= 2
        c >>= 2
        d >>= 2
    if width & 1:
        fields = (a & EACH) | ((b & EACH) << 2) | ((c & EACH) << 4) | ((d & EACH) << 6)
        bits = <uint32_t> (fields | (fields >> 31))
        memcpy(target, &bits, 4)
        target += 4
    return target


cdef inline const uint8_t* _unpack_piece(
    const uint8_t* source, int width, uint64_t shared, uint8_t* target
) noexcept nogil:
    """Invert _pack_piece; `shared` is eight times the byte that all begin with."""
    cdef uint64_t a = shared, b = shared, c = shared, d = shared, fields
    cdef int shift = 0
    if width & 4:
        fields = load_u64(source)
        a |= fields & (EACH * 15)
        c |= (fields >> 4) & (EACH * 15)
        fields = load_u64(source + 8)
        b |= fields & (EACH * 15)
        d |= (fields >> 4) & (EACH * 15)
        source += 16
        shift = 4
    if width & 2:
        fields = load_u64(source)
        a |= (fields & (EACH * 3)) << shift
        b |= ((fields >> 2) & (EACH * 3)) << shift
        c |= ((fields >> 4) & (EACH * 3)) << shift
        d |= ((fields >> 6) & (EACH * 3)) << shift
        source += 8
        shift += 2
    if width & 1:
        fields = load_u32(source)
        fields |= fields << 31
        a |= (fields & EACH) << shift
        b |= ((fields >> 2) & EACH) << shift
        c |= ((fields >> 4) & EACH) << shift
        d |= ((fields >> 6) & EACH) << shift
        source += 4
    _put_word(target, a)
    _put_word(target + 8, b)
    _put_word(target + 16, c)
    _put_word(target + 24, d)
    return source


cdef uint64_t _padded(const uint8_t* source, size_t left) noexcept nogil:
    """Return the last bytes of a plane, padded with copies of the first of them."""
    cdef uint64_t word = EACH * source[0]
    memcpy(&word, source, min(left, <size_t> SMALL_PIECE))
    return word


cdef uint8_t* _pack_rest(
    const uint8_t* source, size_t size, int width, uint8_t* target
) noexcept nogil:
    """Pack pieces of 8 bytes: each bit of all eight in a byte, lowest bit first."""
    cdef size_t start = 0
    cdef int bit
    cdef uint64_t word
    while start < size:
        word = _padded(source + start, size - start)
        start += SMALL_PIECE
        for bit in range(width):
            target[0] = <uint8_t> ((((word >> bit) & EACH) * <uint64_t> 0x0102040810204080) >> 56)
            target += 1
    return target


cdef const uint8_t* _unpack_rest(
    const uint8_t* source, size_t size, int width, uint64_t shared, uint8_t* target
) noexcept nogil:
    cdef size_t start = 0
    cdef int bit
    cdef uint64_t word, spread
    while start < size:
        word = shared
        for bit in range(width):
            spread = (EACH * source[0]) & <uint64_t> 0x8040201008040201
            word |= (((spread + EACH * 0x7F) >> 7) & EACH) << bit
            source += 1
        memcpy(target + start, &word, min(size - start, <size_t> SMALL_PIECE))
        start += SMALL_PIECE
    return source


cdef inline size_t _pack(
    const uint8_t* source, size_t planes, size_t size, uint8_t* target
) noexcept nogil:
    """Inlined for the usual sizes of planes: blocks of 8 and 16 KiB with rows of 100 bytes."""
    cdef uint8_t* widths = target
    cdef uint8_t* place = target + (planes + 1) // 2
    cdef size_t i, piece
    cdef int width
    memset(widths, 0, (planes + 1) // 2)
    for i in range(planes):
        width = _width(source, size)
        widths[i // 2] |= <uint8_t> (width << (i % 2 * 4))
        if width == WHOLE:
            memcpy(place, source, size)
            place += size
        else:
            place[0] = source[0] >> width << width
            place += 1
            if width:
                for piece in range(size // PIECE):
                    place = _pack_piece(source + piece * PIECE, width, place)
                if size % PIECE:
                    piece = size // PIECE * PIECE
                    place = _pack_rest(source + piece, size - piece, width, place)
        source += size
    return place - target


cdef inline int _unpack(
    const uint8_t* source, size_t packed, size_t planes, size_t size, uint8_t* target
) noexcept nogil:
    cdef const uint8_t* widths = source
    cdef const uint8_t* end = source + packed
    cdef size_t i, piece
    cdef int width
    cdef uint64_t shared
    if packed < (planes + 1) // 2:
        return -1
    source += (planes + 1) // 2
    for i in range(planes):
        width = (widths[i // 2] >> (i % 2 * 4)) & 15
        if width > WHOLE or _size_of(size, width) > <size_t> (end - source):
            return -1
        if width == WHOLE:
            memcpy(target, source, size)
            source += size
        else:
            shared = EACH * source[0]
            source += 1
            if width == 0:
                memset(target, <int> (shared & 0xFF), size)
            else:
                for piece in range(size // PIECE):
                    source = _unpack_piece(source, width, shared, target + piece * PIECE)
                if size % PIECE:
                    piece = size // PIECE * PIECE
                    source = _unpack_rest(source, size - piece, width, shared, target + piece)
        target += size
    return 0 if source == end else -1


cdef size_t planes_bound(size_t planes, size_t size) noexcept nogil:
    return (planes + 1) // 2 + planes * size


cdef size_t pack_planes(
    const uint8_t* source, size_t planes, size_t size, uint8_t* target
) noexcept nogil:
    if size == PIECE:
        return _pack(source, planes, PIECE, target)
    if size == 2 * PIECE:
        return _pack(source, planes, 2 * PIECE, target)
    return _pack(source, planes, size, target)


cdef int unpack_planes(
    const uint8_t* source, size_t packed, size_t planes, size_t size, uint8_t* target
) noexcept nogil:
    if size == PIECE:
        return _unpack(source, packed, planes, PIECE, target)
    if size == 2 * PIECE:
        return _unpack(source, packed, planes, 2 * PIECE, target)
    return _unpack(source, packed, planes, size, target)


def packed(bytes data not None, size_t size) -> bytes:
    """Pack planes of `size` bytes each, for tests."""
    cdef size_t planes = len(data) // size
    cdef bytearray target = bytearray(planes_bound(planes, size))
    cdef size_t written = pack_planes(<const uint8_t*> data, planes, size, <uint8_t*> target)
    return bytes(target[:written])


def unpacked(bytes data not None, size_t planes, size_t size) -> bytes | None:
    """Invert ``packed``; None if the data is damaged."""
    cdef bytearray target = bytearray(planes * size)
    if unpack_planes(<const uint8_t*> data, len(data), planes, size, <uint8_t*> target):
        return None
    return bytes(target)
