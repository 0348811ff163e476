from lsmstate.cython_ext.memory.budget cimport Budget, Holding
from lsmstate.cython_ext.locks.locks cimport StoreLock


cdef class Reservations:
    cdef Budget _budget
    cdef StoreLock _lock
    cdef readonly Reservation inmost


cdef class Reservation:
    cdef Reservations _owner
    cdef object _admit
    cdef Reservation _around
    cdef readonly Holding frames
    cdef readonly Holding memtable
    cdef readonly bint is_promised  # whether it is too late to refuse the write
    cdef int _leave(self) except -1
