from lsmstate.cython_ext.memory.budget cimport Budget


cdef class FairLock:
    cdef object _next
    cdef object _held


cdef class Standstill:
    cdef object _lock
    cdef bint _is_held


cdef class Turns:
    cdef Budget _budget
    cdef FairLock _lock
    cdef object _thread  # that has it, or None
    cdef int _depth
    cdef set _waiting
    cdef bint _is_own(self)
    # Have the turn; False if another thread has it, and this one is not waiting.
    cdef bint _take(self, bint waiting, bint counted)
    cdef int _give_back(self) except -1


cdef class StoreLock:
    cdef Turns _turns
    cdef object _lock
    cdef object _thread  # that has it, or None
    cdef int _depth
    cdef bint _has_turn  # which is given back with it
    cdef readonly str failure  # what ended a change in its middle, or ""
    cdef bint _acquire(self, bint waiting, bint in_turn)
    cdef int _release(self) except -1
