"""Check that bytes are msgpack documents: one map each, with text keys, to the last byte.

The check makes no Python objects and trusts no length: a valid document can be decoded with memory
in proportion to its size. Extension types are refused, since their meaning would depend on the
reader. Decoding checks whether text is UTF-8.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef enum:
    DEEPEST = 100    # levels of nesting; msgpack's own decoder stops at 1,024

cdef enum:
    FINE = 0
    NOT_A_MAP = 1
    CUT_OFF = 2
    TOO_DEEP = 3
    BAD_KEY = 4
    EXTENSION = 5
    UNKNOWN_TAG = 6
    TRAILING = 7

cdef tuple REASONS = (
    "", "it is not a map", "it ends too early", f"it is nested over {DEEPEST} levels deep",
    "a key of a map is not text", "it holds an extension type", "a byte has no meaning in msgpack",
    "bytes follow its end",
)

cdef enum:
    SCALAR = 0
    TEXT = 1
    ARRAY = 2
    MAP = 3

cdef struct Item:
    uint8_t kind
    uint64_t size      # bytes that follow (SCALAR, TEXT) or items within (ARRAY, MAP)


cdef inline uint64_t _big_endian(const uint8_t* data, uint32_t width) noexcept nogil:
    cdef uint64_t value = 0
    cdef uint32_t i
    for i in range(width):
        value = (value << 8) | data[i]
    return value


cdef int _read_head(const uint8_t** place, const uint8_t* end, Item* item) noexcept nogil:
    """Read the tag at `place` and its length; advance `place` past them."""
    cdef uint8_t tag
    cdef uint32_t width = 0
    if place[0] >= end:
        return CUT_OFF
    tag = place[0][0]
    place[0] += 1
    item.kind = SCALAR
    item.size = 0
    if tag <= 0x7F or tag >= 0xE0 or tag == 0xC0 or tag == 0xC2 or tag == 0xC3:
        return FINE                                    # small integers, nil, booleans
    if tag <= 0x8F:
        item.kind, item.size = MAP, 2 * (tag & 0x0F)
        return FINE
    if tag <= 0x9F:
        item.kind, item.size = ARRAY, tag & 0x0F
        return FINE
    if tag <= 0xBF:
        item.kind, item.size = TEXT, tag & 0x1F
        return FINE
    if tag == 0xC1:
        return UNKNOWN_TAG
    if 0xC7 <= tag <= 0xC9 or 0xD4 <= tag <= 0xD8:
        return EXTENSION
    if 0xCA <= tag <= 0xD3:                            # floats and integers of fixed width
        item.size = (4 if tag == 0xCA else 8) if tag <= 0xCB else 1 << ((tag - 0xCC) & 3)
        return FINE
    if tag <= 0xC6:
        width = 1 << (tag - 0xC4)                      # binary
    elif tag <= 0xDB:
        item.kind, width = TEXT, 1 << (tag - 0xD9)
    elif tag <= 0xDD:
        item.kind, width = ARRAY, 2 << (tag - 0xDC)
    else:
        item.kind, width = MAP, 2 << (tag - 0xDE)
    if <uint64_t> (end - place[0]) < width:
        return CUT_OFF
    item.size = _big_endian(place[0], width) * (2 if item.kind == MAP else 1)
    place[0] += width
    return FINE


cdef int _check(const uint8_t* place, const uint8_t* end) noexcept nogil:
    """Return why one document is refused, or FINE."""
    cdef uint64_t left[DEEPEST]      # items still to come, per open array or map
    cdef uint8_t is_map[DEEPEST]
    cdef int depth = 0, state
    cdef Item item
    state = _read_head(&place, end, &item)
    if state != FINE or item.kind != MAP:
        return NOT_A_MAP if state == FINE else state
    while True:
        if item.size > <uint64_t> (end - place):
            return CUT_OFF                             # an item takes a byte at least
        if item.kind >= ARRAY:
            if depth == DEEPEST:
                return TOO_DEEP
            left[depth] = item.size
            is_map[depth] = item.kind == MAP
            depth += 1
        else:
            place += item.size
        while depth and left[depth - 1] == 0:
            depth -= 1
        if depth == 0:
            return FINE if place == end else TRAILING
        state = _read_head(&place, end, &item)
        if state != FINE:
            return state
        if is_map[depth - 1] and left[depth - 1] % 2 == 0 and item.kind != TEXT:
            return BAD_KEY
        left[depth - 1] -= 1


def check_documents(const uint8_t[::1] data not None, const int32_t[::1] offsets not None) -> None:
    """Raise InvalidArgumentError that names the first invalid document. Document i lies from
    offsets[i] to offsets[i + 1] of `data`."""
    cdef Py_ssize_t i, count = offsets.shape[0] - 1
    cdef Py_ssize_t size = data.shape[0]
    cdef const uint8_t* start = &data[0] if size else NULL
    cdef int state = FINE
    with nogil:
        for i in range(count):
            if offsets[i] < 0 or offsets[i] > offsets[i + 1] or offsets[i + 1] > size:
                state = CUT_OFF
            else:
                state = _check(start + offsets[i], start + offsets[i + 1])
            if state != FINE:
                break
    if state != FINE:
        raise InvalidArgumentError(
            f"document {i} is not a msgpack document: {REASONS[state]}; make documents with "
            "lsmstate.schema.documents.encode_documents, or with msgpack.packb of a dict with text keys"
        )
