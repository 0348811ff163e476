from libc.stdint cimport int64_t

from lsmstate.cython_ext.memory.budget cimport Budget

cdef struct Piece:
    int64_t max_bytes    # of its rows, encoded
    int64_t charged      # for the batch that is made of them
    bint is_free         # that batch is not counted, but for what it has beyond twice max_bytes


# A piece of rows, where so many bytes are asked for: a sixteenth of the cap at most, and less where
# memory is short. MemoryLimitError; else it is to be ended.
cdef int begin_piece(Budget budget, int64_t asked, Piece* piece) except -1 nogil
# Charge what its batch holds so far. MemoryLimitError; it is to be ended then, too.
cdef int pay_for_batch(Budget budget, Piece* piece, int64_t size) except -1 nogil
# Its batch was handed out, or there is none. A second call does nothing.
cdef void end_piece(Budget budget, Piece* piece) noexcept nogil
# What a buffer may keep from one piece to the next.
cdef size_t kept_bytes(Budget budget) noexcept nogil
# Charge `size` bytes that a read is about to take, or has just taken; negative: give them back.
cdef int take_memory(Budget budget, int64_t size) except -1 nogil
