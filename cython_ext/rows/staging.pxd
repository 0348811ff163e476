"""Staging of a piece's rows: they are copied here and decoded while they are in the nearer caches.
The key position of each row stays for the whole piece."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer, put_u64, release, reserve

cdef struct Staging:
    int64_t max_bytes   # of the piece: of its rows, and eight for each
    int64_t decoded     # bytes of rows that were
    Buffer rows         # that were not
    Buffer ends         # of these: 0, and where each ends
    Buffer positions    # of the keys of all


cdef inline int begin_staging(Staging* staging, int64_t max_bytes) except -1 nogil:
    staging.max_bytes = max_bytes
    staging.decoded = 0
    staging.rows.size = 0
    staging.ends.size = 0
    staging.positions.size = 0
    put_u64(&staging.ends, 0)
    return 0


cdef inline void free_staging(Staging* staging) noexcept nogil:
    release(&staging.rows)
    release(&staging.ends)
    release(&staging.positions)


cdef inline int64_t held_by(const Staging* staging) noexcept nogil:
    """Bytes of memory held."""
    return <int64_t> (
        staging.rows.capacity + staging.ends.capacity + staging.positions.capacity
    )


cdef inline int64_t rows_of(const Staging* staging) noexcept nogil:
    """Rows in the piece so far."""
    return <int64_t> (staging.positions.size // 8)


cdef inline int64_t bytes_of(const Staging* staging) noexcept nogil:
    """Bytes of the piece so far: the positions count, or empty rows would never fill it."""
    return staging.decoded + <int64_t> (staging.rows.size + staging.positions.size)


cdef inline int note_row(Staging* staging, size_t end, int64_t position) except -1 nogil:
    """Note that a row of that key ends there in the staging buffer."""
    put_u64(&staging.ends, end)
    put_u64(&staging.positions, <uint64_t> position)
    return 0


cdef inline int note_positions(Staging* staging, uint32_t count, int64_t position) except -1 nogil:
    """Note that so many rows belong to that key."""
    cdef int64_t* positions
    cdef uint32_t i
    reserve(&staging.positions, 8 * <size_t> count)
    positions = <int64_t*> (staging.positions.data + staging.positions.size)
    for i in range(count):
        positions[i] = position
    staging.positions.size += 8 * <size_t> count
    return 0


cdef inline uint8_t* stage_rows(
    Staging* staging, uint32_t count, size_t width, int64_t position
) except NULL nogil:
    """Return where so many rows of one width are to be copied."""
    cdef size_t start = staging.rows.size, i
    cdef uint64_t* ends
    reserve(&staging.rows, count * width + 1)  # a valid pointer even for rows of no bytes
    reserve(&staging.ends, 8 * <size_t> count)
    note_positions(staging, count, position)
    ends = <uint64_t*> (staging.ends.data + staging.ends.size)
    for i in range(count):
        ends[i] = start + (i + 1) * width
    staging.ends.size += 8 * <size_t> count
    staging.rows.size += count * width
    return staging.rows.data + start


cdef inline uint32_t fitting(const Staging* staging, uint32_t wanted, size_t width) noexcept nogil:
    """Return how many rows of one width fit the piece: at least one if it is empty."""
    cdef int64_t row = <int64_t> width, room = staging.max_bytes - bytes_of(staging) - row
    if room < 0:
        return 0 if staging.positions.size else 1
    return <uint32_t> min(<int64_t> wanted, room // (row + 8) + 1)


cdef inline bint is_full(const Staging* staging, size_t extra) noexcept nogil:
    """Test whether so many more bytes do not fit. A piece holds at least one row."""
    return staging.positions.size > 0 and (
        bytes_of(staging) + <int64_t> extra > staging.max_bytes
    )
