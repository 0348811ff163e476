"""One write of a standalone store as bytes for its write-ahead log, and back.

Every length is checked before it is used: an inconsistent record raises CorruptionError. Framing
and checksum are the log's (lsmstate/lsm/wal.py). The search for frames in a damaged log is here.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from lsmstate.cython_ext.errors import CorruptionError

from lsmstate.cython_ext.base.coding cimport load_u32, load_u64
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.rows.row_codec cimport RowBatch

cdef enum:
    HEAD_BYTES = 24
    FRAME_BYTES = 24
    OLD_FRAME_BYTES = 16
    LEAST_LENGTH = 11  # of a payload: its kind, stream and sequence number


def write_pieces(KeyBatch keys not None, RowBatch rows) -> list:
    """Return the pieces of a write: counts, offsets and bytes of keys, and of the rows of an append
    (None for a delete). Most pieces are views of the batches, which must outlive them, so nothing
    is copied first."""
    cdef uint64_t head[3]
    cdef uint64_t n = keys.n
    cdef list pieces
    head[0] = n
    head[1] = keys.offsets[n]
    head[2] = rows.offsets[n] if rows is not None else 0
    pieces = [
        <bytes> (<char*> head)[:HEAD_BYTES],
        _view(keys.valid, n),
        _view(keys.offsets, (n + 1) * 8),
        _view(keys.data, head[1]),
    ]
    if rows is not None:
        pieces.append(_view(rows.offsets, (n + 1) * 8))
        pieces.append(_view(rows.data, head[2]))
    return pieces


cdef object _view(const void* data, size_t size):
    return PyMemoryView_FromMemory(<char*> data, size, PyBUF_READ) if size else b""


def unpack_write(const uint8_t[::1] record not None, bint with_rows) -> tuple:
    """Return (KeyBatch, RowBatch or None) of one packed write."""
    cdef size_t size = record.shape[0]
    cdef const uint8_t* data
    cdef uint64_t n, key_bytes, row_bytes
    cdef KeyBatch keys
    cdef RowBatch rows = None
    cdef const uint8_t* offsets
    cdef size_t i, wanted
    if size < HEAD_BYTES:
        raise CorruptionError(f"a write of {size} bytes")
    data = &record[0]
    n = load_u64(data)
    key_bytes = load_u64(data + 8)
    row_bytes = load_u64(data + 16)
    if n > size or key_bytes > size or row_bytes > size:
        raise CorruptionError(f"a write of {size} bytes says {n} keys of {key_bytes} bytes")
    wanted = HEAD_BYTES + n + (n + 1) * 8 + key_bytes
    if with_rows:
        wanted += (n + 1) * 8 + row_bytes
    if wanted != size:
        raise CorruptionError(f"a write of {size} bytes, its counts add up to {wanted}")
    offsets = data + HEAD_BYTES + n
    _check_offsets(offsets, n, key_bytes, 2)
    keys = KeyBatch.__new__(KeyBatch)
    keys.take_rows(n)
    for i in range(n):
        keys.valid[i] = data[HEAD_BYTES + i] != 0
        keys.offsets[i + 1] = load_u64(offsets + 8 * (i + 1)) - load_u64(offsets + 8 * i) - 2
    keys.take_data()
    memcpy(keys.data, offsets + (n + 1) * 8, key_bytes)
    with nogil:
        keys.finish()
    if with_rows:
        offsets = data + (wanted - row_bytes - (n + 1) * 8)
        _check_offsets(offsets, n, row_bytes, 0)
        rows = RowBatch.__new__(RowBatch)
        rows.offsets = <uint64_t*> malloc((n + 1) * 8)
        rows.data = <uint8_t*> malloc(row_bytes + 8)
        if rows.offsets == NULL or rows.data == NULL:
            raise MemoryError(f"cannot allocate {row_bytes} bytes")
        rows.n = n
        memcpy(rows.offsets, offsets, (n + 1) * 8)
        memcpy(rows.data, offsets + (n + 1) * 8, row_bytes)
    return keys, rows


cdef int _check_offsets(
    const uint8_t* offsets, uint64_t n, uint64_t end, uint64_t least
) except -1:
    cdef size_t i
    if load_u64(offsets) != 0 or load_u64(offsets + 8 * n) != end:
        raise CorruptionError("the offsets of a write do not span its bytes")
    for i in range(n):
        if load_u64(offsets + 8 * i) + least > load_u64(offsets + 8 * (i + 1)):
            raise CorruptionError(f"offset {i} of a write is out of order")
    return 0


def largest_entry(KeyBatch keys not None, RowBatch rows) -> int:
    """Return the bytes of the largest key together with its row, if there are rows."""
    cdef Py_ssize_t i
    cdef uint64_t size, largest = 0
    if rows is not None and rows.n != keys.n:
        raise ValueError(f"{keys.n} keys for {rows.n} rows")
    for i in range(keys.n):
        size = keys.offsets[i + 1] - keys.offsets[i]
        if rows is not None:
            size += rows.offsets[i + 1] - rows.offsets[i]
        if size > largest:
            largest = size
    return largest


def largest_row(RowBatch rows not None) -> int:
    """Return the bytes of the largest row; 0 if there is none."""
    cdef Py_ssize_t i
    cdef uint64_t largest = 0
    for i in range(rows.n):
        if rows.offsets[i + 1] - rows.offsets[i] > largest:
            largest = rows.offsets[i + 1] - rows.offsets[i]
    return largest


def frame_check(uint64_t offset, uint32_t length, uint64_t forced) -> int:
    """The check in the frame of a record: of the record's place in the log, its length, and up to
    where the log was forced to the disk."""
    return _frame_check(offset, length, forced)


cdef uint32_t _frame_check(uint64_t offset, uint64_t length, uint64_t forced) noexcept nogil:
    cdef uint64_t[3] fields
    fields[0] = offset
    fields[1] = length
    fields[2] = forced
    return <uint32_t> xxh3(fields, sizeof(fields))


def next_frame(const uint8_t[::1] data not None, uint64_t offset, bint is_old) -> int:
    """The first place in ``data``, which stands at ``offset`` of a log, where a frame checks; -1 if
    there is none. ``is_old``: of the formats before the third. Cost: some nanoseconds a byte."""
    cdef Py_ssize_t place, last
    cdef const uint8_t* frame
    cdef uint32_t length
    cdef uint64_t forced
    last = data.shape[0] - (OLD_FRAME_BYTES if is_old else FRAME_BYTES)
    if last < 0:
        return -1
    with nogil:
        for place in range(last + 1):
            frame = &data[place]
            length = load_u32(frame)
            if length < LEAST_LENGTH:
                continue
            if is_old:
                if load_u32(frame + 4) == <uint32_t> xxh3(frame, 4):
                    break
                continue
            forced = load_u64(frame + 8)
            if forced > offset + place:
                continue
            if load_u32(frame + 4) == _frame_check(offset + place, length, forced):
                break
        else:
            place = -1
    return place
