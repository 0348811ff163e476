from libc.stdint cimport int64_t

from cython_ext.budget cimport Budget

# Bytes of a piece of rows, where so many are asked for: a sixteenth of the cap at most.
cdef int64_t piece_limit(Budget budget, int64_t asked) noexcept nogil
# What a buffer may keep from one piece to the next.
cdef size_t kept_bytes(Budget budget) noexcept nogil
# Charge `size` bytes that a read is about to take, or has just taken; negative: give them back.
cdef int take_memory(Budget budget, int64_t size) except -1 nogil
