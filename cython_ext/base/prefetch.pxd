"""Have the processor fetch the cache line of an address that will be read soon. Any address does."""

cdef extern from *:
    """
    #define prefetch_line(place) __builtin_prefetch(place)
    """
    void prefetch_line(const void* place) noexcept nogil
