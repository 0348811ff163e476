"""Pool of large buffers of Arrow columns: buffers that a consumer has released are kept for the
next batch.

Memory that was returned to the system comes back page by page, each of them cleared. How much is
returned depends on the allocator: with glibc's defaults in a new process, the end of the heap; with
fixed thresholds, as Spark's workers have them here, every large buffer.

Any thread may release a batch, without the GIL, even after its store and budget are gone. Each
exported array therefore holds the pool. Nobody waits for the lock: a thread that does not get it
does without the pool, and the one that has it checks the room again afterwards. In a forked child
another thread of the parent may hold the lock, and a reference, forever.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

from lsmstate.cython_ext.base.arrow_c cimport ArrowArray
from lsmstate.cython_ext.base.atomic cimport (
    atomic_add, atomic_get, atomic_get_in_order, atomic_leave, atomic_set, atomic_try_lock,
    atomic_unlock,
)
from lsmstate.cython_ext.base.coding cimport Buffer, reserve


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
        atomic_set(&spares.room, 0)
        trim_spares(spares)
        free(spares)


cdef int take_or_grow(SpareBuffers* spares, Buffer* buffer, size_t extra) except -1 nogil:
    cdef size_t wanted = buffer.size + extra
    cdef int64_t capacity
    cdef void* data
    if spares == NULL or not LEAST_SPARE_BYTES <= wanted < <size_t> 1 << 48:
        return reserve(buffer, extra)
    capacity = _class_of(wanted if buffer.size == 0 else max(wanted, buffer.size * 3 // 2))
    data = _take(spares, &capacity)
    if data != NULL:
        if buffer.size:
            memcpy(data, buffer.data, buffer.size)
        give_back(spares, buffer.data, <int64_t> buffer.capacity)
    else:
        # Not a new one beside the old: the system moves the pages of large ones.
        data = realloc(buffer.data, <size_t> capacity)
        if data == NULL:
            return reserve(buffer, extra)  # what is wanted, at least, or its error
    buffer.data = <unsigned char*> data
    buffer.capacity = <size_t> capacity
    return 0


cdef void trim_buffer(Buffer* buffer) noexcept nogil:
    cdef size_t capacity = buffer.size + 16
    cdef void* data
    if buffer.capacity <= 4096 or buffer.capacity - buffer.size <= buffer.size >> 3:
        return
    if capacity >= LEAST_SPARE_BYTES:
        capacity = <size_t> _class_of(capacity)
    if capacity >= buffer.capacity:
        return
    data = realloc(buffer.data, capacity)
    if data != NULL:
        buffer.data = <unsigned char*> data
        buffer.capacity = capacity


cdef void give_back(SpareBuffers* spares, void* data, int64_t capacity) noexcept nogil:
    cdef void* gone[MOST_SPARES]
    cdef Py_ssize_t n = 0
    cdef int64_t room
    if (
        data == NULL or spares == NULL or capacity < LEAST_SPARE_BYTES
        or capacity > atomic_get(&spares.room) or not atomic_try_lock(&spares.lock)
    ):
        free(data)
        return
    room = atomic_get(&spares.room)
    if capacity <= room:
        # The oldest make way, which nobody wanted for the longest time.
        while spares.count == MOST_SPARES or spares.kept + capacity > room:
            gone[n] = _taken_out(spares, 0)
            n += 1
        spares.items[spares.count].data = data
        spares.items[spares.count].capacity = capacity
        spares.count += 1
        spares.kept += capacity
        data = NULL
    atomic_unlock(&spares.lock)
    free(data)
    _free_all(gone, n)
    trim_spares(spares)


cdef void trim_spares(SpareBuffers* spares) noexcept nogil:
    cdef void* gone[MOST_SPARES]
    cdef Py_ssize_t n
    # Again: who makes the room smaller while another has the lock leaves it to that one.
    while (
        atomic_get_in_order(&spares.kept) > atomic_get_in_order(&spares.room)
        and atomic_try_lock(&spares.lock)
    ):
        n = 0
        while spares.kept > atomic_get(&spares.room):
            gone[n] = _taken_out(spares, 0)
            n += 1
        atomic_unlock(&spares.lock)
        _free_all(gone, n)


cdef int64_t keepable_bytes(const ArrowArray* array, int64_t most) noexcept nogil:
    cdef Py_ssize_t count = 0
    return _keepable(array, most, &count)


cdef int64_t _keepable(const ArrowArray* array, int64_t most, Py_ssize_t* count) noexcept nogil:
    """`count` is the number of buffers found so far."""
    cdef Owned* owned = <Owned*> array.private_data
    cdef int64_t found = 0, i
    for i in range(array.n_buffers):
        if LEAST_SPARE_BYTES <= owned.capacities[i] <= most and count[0] < MOST_SPARES:
            count[0] += 1
            found += owned.capacities[i]
    for i in range(array.n_children):
        found += _keepable(array.children[i], most, count)
    return found


cdef int64_t _class_of(size_t size) noexcept nogil:
    """Return the size rounded up by at most an eighth: eight sizes between a power of two and the
    next. Columns of similar row counts thus have buffers of one size."""
    cdef size_t step = LEAST_SPARE_BYTES // 8
    while size > 16 * step:
        step *= 2
    return <int64_t> ((size + step - 1) // step * step)


cdef void* _take(SpareBuffers* spares, int64_t* capacity) noexcept nogil:
    """Take the newest of the smallest buffers that have the capacity and are not much larger."""
    cdef Py_ssize_t i, found = -1
    cdef int64_t least = capacity[0] + capacity[0] // 4 + 1
    cdef void* data = NULL
    if not atomic_try_lock(&spares.lock):
        return NULL
    for i in range(spares.count - 1, -1, -1):
        if capacity[0] <= spares.items[i].capacity < least:
            found = i
            least = spares.items[i].capacity
    if found >= 0:
        capacity[0] = spares.items[found].capacity
        data = _taken_out(spares, found)
    atomic_unlock(&spares.lock)
    trim_spares(spares)
    return data


cdef void* _taken_out(SpareBuffers* spares, Py_ssize_t place) noexcept nogil:
    """Remove a buffer; the lock is held."""
    cdef void* data = spares.items[place].data
    spares.count -= 1
    spares.kept -= spares.items[place].capacity
    memmove(
        &spares.items[place], &spares.items[place + 1],
        (spares.count - place) * sizeof(SpareBuffer),
    )
    return data


cdef void _free_all(void** gone, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        free(gone[i])
