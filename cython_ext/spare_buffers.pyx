"""Large buffers of Arrow columns that a consumer has let go, kept for the next batch.

What goes back to the system comes from it again page by page, each of them cleared: a fifth to a
quarter of the time of a reader that drops one batch after the other. A batch may be let go by any
thread, without the GIL, when its store and budget are gone, and in a forked child whose parent had
the lock at that moment. So nobody waits for the lock (who does not get it does without), and each
array that is out holds what it may come back to.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove

from cython_ext.atomic cimport atomic_add, atomic_leave, atomic_try_lock, atomic_unlock
from cython_ext.coding cimport Buffer, release, reserve


cdef SpareBuffers* new_spares() except NULL:
    cdef SpareBuffers* spares = <SpareBuffers*> calloc(1, sizeof(SpareBuffers))
    if spares == NULL:
        raise MemoryError(f"cannot allocate {sizeof(SpareBuffers)} bytes")
    spares.holders = 1
    return spares


cdef void hold_spares(SpareBuffers* spares) noexcept nogil:
    atomic_add(&spares.holders, 1)


cdef void leave_spares(SpareBuffers* spares) noexcept nogil:
    if atomic_leave(&spares.holders) == 0:
        free_spares(spares)
        free(spares)


cdef bint try_lock_spares(SpareBuffers* spares) noexcept nogil:
    return atomic_try_lock(&spares.lock)


cdef void unlock_spares(SpareBuffers* spares) noexcept nogil:
    atomic_unlock(&spares.lock)


cdef int reserve_spare(SpareBuffers* spares, Buffer* buffer, size_t extra) except -1 nogil:
    cdef size_t wanted = buffer.size + extra
    cdef size_t capacity
    cdef void* data
    if wanted <= buffer.capacity:
        return 0
    if spares == NULL or wanted < LEAST_SPARE_BYTES:
        return reserve(buffer, extra)
    capacity = _class_of(wanted if buffer.size == 0 else max(wanted, buffer.size * 3 // 2))
    data = _take(spares, &capacity)
    if data == NULL:
        data = malloc(capacity)
    if data == NULL:
        return reserve(buffer, extra)  # what is wanted, at least, or its error
    if buffer.size:
        memcpy(data, buffer.data, buffer.size)
    free(buffer.data)
    buffer.data = <unsigned char*> data
    buffer.capacity = capacity
    return 0


cdef void trim_buffer(Buffer* buffer) noexcept nogil:
    cdef size_t capacity = buffer.size + 16
    cdef void* data
    if buffer.capacity <= 4096 or buffer.capacity - buffer.size <= buffer.size >> 3:
        return
    if capacity >= LEAST_SPARE_BYTES:
        capacity = _class_of(capacity)
    if capacity >= buffer.capacity:
        return
    data = realloc(buffer.data, capacity)
    if data != NULL:
        buffer.data = <unsigned char*> data
        buffer.capacity = capacity


cdef void give_back(SpareBuffers* spares, void* data, size_t capacity) noexcept nogil:
    cdef SpareBuffer* last
    if (
        data == NULL or spares == NULL or capacity < LEAST_SPARE_BYTES
        or not try_lock_spares(spares)
    ):
        free(data)
        return
    if capacity <= <size_t> spares.room:
        # The oldest make way: they are of a size that is not wanted any more.
        while spares.count == MOST_SPARES or spares.kept + capacity > <size_t> spares.room:
            free(spares.items[0].data)
            _remove(spares, 0)
        last = &spares.items[spares.count]
        last.data = data
        last.capacity = capacity
        spares.count += 1
        spares.kept += capacity
        data = NULL
    unlock_spares(spares)
    free(data)


cdef void free_spares(SpareBuffers* spares) noexcept nogil:
    while spares.count:
        free(spares.items[spares.count - 1].data)
        _remove(spares, spares.count - 1)


cdef size_t _class_of(size_t size) noexcept nogil:
    """The size itself or up to an eighth more: one of eight sizes between a power of two and the
    next, so that columns of about as many rows have buffers of one size."""
    cdef size_t step = LEAST_SPARE_BYTES // 8
    while size > 16 * step:
        step *= 2
    return (size + step - 1) // step * step


cdef void* _take(SpareBuffers* spares, size_t* capacity) noexcept nogil:
    """The newest of those that are the smallest of at least that capacity, and not much larger."""
    cdef Py_ssize_t i, found = -1
    cdef size_t least = capacity[0] + capacity[0] // 4 + 1
    cdef void* data = NULL
    if not try_lock_spares(spares):
        return NULL
    for i in range(spares.count - 1, -1, -1):
        if capacity[0] <= spares.items[i].capacity < least:
            found = i
            least = spares.items[i].capacity
    if found >= 0:
        data = spares.items[found].data
        capacity[0] = spares.items[found].capacity
        _remove(spares, found)
    unlock_spares(spares)
    return data


cdef void _remove(SpareBuffers* spares, Py_ssize_t place) noexcept nogil:
    spares.count -= 1
    spares.kept -= spares.items[place].capacity
    memmove(
        &spares.items[place], &spares.items[place + 1],
        (spares.count - place) * sizeof(SpareBuffer),
    )
