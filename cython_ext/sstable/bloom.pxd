from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer

# Append the filter of `count` key hashes to `target`; nothing if bits_per_key is 0.
cdef int build_filter(
    Buffer* target, const uint64_t* hashes, size_t count, int bits_per_key
) except -1 nogil
# Have the processor fetch what may_contain will look at.
cdef void prefetch_filter(const uint8_t* data, size_t size, uint64_t hash) noexcept nogil
# 1 if the key may be there, 0 if it is certainly not. An empty filter lets everything through.
cdef int may_contain(const uint8_t* data, size_t size, uint64_t hash) noexcept nogil
