"""Budget of probes and iterators.

- Half of the memory cap is theirs without asking. The largest row may take a quarter, and a single
  read must not fail because of writers, whose memtables take at most three eighths.
- Beyond that, reads must fit beside everything that cannot be evicted. An eighth of the cap is left
  to writers, or a small memtable and what flushes and merges hold or have reserved. A store with
  too many open iterators can thus still be written to.
- A batch takes up to twice as much as its piece of rows. That is charged while it is made, except
  for one batch at a time: for a single reader it would repeatedly evict as much from the block
  cache (hits 8 % more expensive).
- If there are several readers, pieces are smaller when memory is short.
"""

from libc.stdint cimport int64_t

from lsmstate.cython_ext.errors import MemoryLimitError

from lsmstate.cython_ext.base.atomic cimport atomic_get
from lsmstate.cython_ext.memory.budget cimport MERGE, PROBE, Budget

cdef enum:
    LEAST_PIECE_BYTES = 256 * 1024
    SHORT_PIECE_BYTES = 64 * 1024  # as small as a shortage makes them
    LEAST_READ_BYTES = 1024 * 1024  # this much is never refused, however small the cap is
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
    # A piece takes at most a quarter of what is left: others, and lookups, may begin before it
    # ends.
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
    # The size of a large row decreases with the number of stores, each of which a thread may read.
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
                f"no memory to continue a read, which needs {size} more bytes: {_in_use(budget)}; "
                "close or drop probes and iterators, ask for fewer keys or smaller pieces at a "
                "time, or raise the memory cap"
            )
    return 0


def check_room(Budget budget not None, int64_t size, int64_t keys) -> None:
    """Raise MemoryLimitError unless there is room for a probe of so many keys and about so many
    bytes."""
    if not _fits(budget, size):
        raise MemoryLimitError(
            f"a probe of {keys} keys takes about {size} bytes: {_in_use(budget)}; ask for fewer "
            "keys at a time, or raise the memory cap"
        )


cdef str _in_use(Budget budget):
    return (
        f"probes and iterators hold {atomic_get(&budget.used[PROBE])} bytes, and "
        f"{budget.usage()} of the cap of {atomic_get(&budget.limit_bytes)} bytes are in use"
    )
