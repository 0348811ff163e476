"""Atomic counters that several threads change without a lock and without the GIL.

Operations are relaxed, with these exceptions:

- A thread that exchanges a pointer sees what was written behind it.
- The last thread to leave, and a thread that takes a lock, see what was done before by those that
  left or held it.
- Reads and counts "in order" are sequentially consistent.
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #include <stdint.h>
    #define atomic_add(place, value) __atomic_add_fetch((place), (value), __ATOMIC_RELAXED)
    #define atomic_count(place, value) ((void)__atomic_add_fetch((place), (value), __ATOMIC_RELAXED))
    #define atomic_get(place) __atomic_load_n((place), __ATOMIC_RELAXED)
    #define atomic_seen(place) __atomic_load_n((place), __ATOMIC_RELAXED)
    #define atomic_exchange(place, value) __atomic_exchange_n((place), (value), __ATOMIC_ACQ_REL)
    #define atomic_leave(place) __atomic_sub_fetch((place), 1, __ATOMIC_ACQ_REL)
    #define atomic_try_lock(place) (!__atomic_exchange_n((place), 1, __ATOMIC_ACQUIRE))
    #define atomic_unlock(place) ((void)__atomic_exchange_n((place), 0, __ATOMIC_SEQ_CST))
    #define atomic_count_in_order(place) ((void)__atomic_add_fetch((place), 1, __ATOMIC_SEQ_CST))
    #define atomic_get_in_order(place) __atomic_load_n((place), __ATOMIC_SEQ_CST)
    #define atomic_set(place, value) __atomic_store_n((place), (value), __ATOMIC_RELAXED)
    static inline void atomic_max(int64_t* place, int64_t value) {
        int64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
        while (seen < value && !__atomic_compare_exchange_n(
            place, &seen, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    }
    /* Makes it as small as that; by how much. */
    static inline int64_t atomic_lower(int64_t* place, int64_t value) {
        int64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
        while (seen > value && !__atomic_compare_exchange_n(
            place, &seen, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
        return seen > value ? seen - value : 0;
    }
    /* Adds unless the sum would pass the limit; the sum, or -1. Unlike adding and taking back, it
       never makes another thread's charge fail that would have fitted. */
    static inline int64_t atomic_add_within(int64_t* place, int64_t value, int64_t limit) {
        int64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
        do {
            if (seen + value > limit) return -1;
        } while (!__atomic_compare_exchange_n(
            place, &seen, seen + value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return seen + value;
    }
    """
    int64_t atomic_add(int64_t* place, int64_t value) noexcept nogil
    void atomic_count(uint64_t* place, uint64_t value) noexcept nogil
    int64_t atomic_get(int64_t* place) noexcept nogil
    uint64_t atomic_seen(uint64_t* place) noexcept nogil
    void* atomic_exchange(void** place, void* value) noexcept nogil
    int64_t atomic_leave(int64_t* place) noexcept nogil
    bint atomic_try_lock(int64_t* place) noexcept nogil
    void atomic_unlock(int64_t* place) noexcept nogil
    void atomic_set(int64_t* place, int64_t value) noexcept nogil
    void atomic_max(int64_t* place, int64_t value) noexcept nogil
    void atomic_count_in_order(int64_t* place) noexcept nogil
    int64_t atomic_get_in_order(int64_t* place) noexcept nogil
    int64_t atomic_lower(int64_t* place, int64_t value) noexcept nogil
    int64_t atomic_add_within(int64_t* place, int64_t value, int64_t limit) noexcept nogil
