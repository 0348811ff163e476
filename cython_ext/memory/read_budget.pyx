"""What probes and iterators ask of the budget.

Half of the cap is theirs without asking: the largest row may take a quarter, and a read that is the
only one is not to fail because of writers, whose memtables take three eighths at most. What reads
take beyond that has to fit beside all that cannot be evicted. An eighth of the cap is left to
writers, or a small memtable and what flushes and merges hold or have reserved, so that a store on
which too many iterators are open can still be written to.

A batch that is made of a piece's rows takes up to twice as much as they, which is charged while it
is made, but for one of those that are made at a time: of a single reader, for whom that would drive
as much out of the block cache again and again (hits 8 % dearer). Where there are several, pieces
are smaller when memory is short.
"""

from libc.stdint cimport int64_t

from lsmstate.cython_ext.errors import MemoryLimitError

from lsmstate.cython_ext.base.atomic cimport atomic_get
from lsmstate.cython_ext.memory.budget cimport MERGE, PROBE, Budget

cdef enum:
    LEAST_PIECE_BYTES = 256 * 1024
    SHORT_PIECE_BYTES = 64 * 1024  # as small as a shortage makes them
    LEAST_READ_BYTES = 1024 * 1024  # so much is never refused, however small the cap
    LEAST_WRITE_BYTES = 256 * 1024  # a memtable, beside the reserve of flushes and merges


cdef int64_t piece_limit(Budget budget, int64_t asked) noexcept nogil:
    cdef int64_t most = atomic_get(&budget.limit_bytes) // 16
    return min(asked, max(most, <int64_t> LEAST_PIECE_BYTES))


cdef int begin_piece(Budget budget, int64_t asked, Piece* piece) except -1 nogil:
    piece.max_bytes = max(<int64_t> 1, piece_limit(budget, asked))
    piece.is_free = budget.begin_free_piece()
    piece.charged = 0
    if piece.is_free:
        return 0
    # One takes a quarter of what is left at most: others, and lookups, may begin before it ends.
    while piece.max_bytes > SHORT_PIECE_BYTES and not _fits(budget, 8 * piece.max_bytes):
        piece.max_bytes = max(piece.max_bytes // 2, <int64_t> SHORT_PIECE_BYTES)
    take_memory(budget, 2 * piece.max_bytes)
    piece.charged = 2 * piece.max_bytes
    return 0


cdef int pay_for_batch(Budget budget, Piece* piece, int64_t size) except -1 nogil:
    cdef int64_t beyond = max(<int64_t> 0, size - 2 * piece.max_bytes)
    cdef int64_t due = beyond if piece.is_free else 2 * piece.max_bytes + beyond
    take_memory(budget, due - piece.charged)
    piece.charged = due
    return 0


cdef void end_piece(Budget budget, Piece* piece) noexcept nogil:
    budget.release(PROBE, piece.charged)
    piece.charged = 0
    if piece.is_free:
        budget.end_free_piece()
    piece.is_free = False


cdef size_t kept_bytes(Budget budget) noexcept nogil:
    # What is large grows smaller with the number of stores, of which each may be read by a thread.
    return <size_t> (2 * piece_limit(budget, atomic_get(&budget.large_limit)))


cdef bint _fits(Budget budget, int64_t size) noexcept nogil:
    cdef int64_t limit = atomic_get(&budget.limit_bytes)
    cdef int64_t merging
    if atomic_get(&budget.used[PROBE]) + size <= max(limit // 2, <int64_t> LEAST_READ_BYTES):
        return True
    merging = max(atomic_get(&budget.merge_reserve), atomic_get(&budget.used[MERGE]))
    limit -= max(limit // 8, merging + LEAST_WRITE_BYTES)
    return atomic_get(&budget.firm) + size <= limit


cdef int take_memory(Budget budget, int64_t size) except -1 nogil:
    if size <= 0:
        budget.release(PROBE, -size)
    elif _fits(budget, size):
        budget.charge(PROBE, size)
    else:
        with gil:
            raise MemoryLimitError(
                f"no memory to read on, {size} bytes more: {_in_use(budget)}; close or drop some, "
                "ask for fewer keys or smaller pieces at a time, or raise memory_bytes"
            )
    return 0


def check_room(Budget budget not None, int64_t size, int64_t keys) -> None:
    """MemoryLimitError unless there is room for a probe of so many keys, which takes about so many
    bytes."""
    if not _fits(budget, size):
        raise MemoryLimitError(
            f"a probe of {keys} keys takes about {size} bytes: {_in_use(budget)}; ask for fewer "
            "keys at a time, or raise memory_bytes"
        )


cdef str _in_use(Budget budget):
    return (
        f"probes and iterators hold {atomic_get(&budget.used[PROBE])} bytes, and all that is in "
        f"use is {budget.usage()} of the cap of {atomic_get(&budget.limit_bytes)} bytes"
    )
