"""Memory that is held for the writes of one store, from before they are logged until they are made.

Compiled, as locks are and for the same reason: however a write is interrupted, what was held for it
is given back before the next one begins, or the next one would take it for its own.
"""

cimport cython

from lsmstate.cython_ext.memory.budget cimport Budget, Holding
from lsmstate.cython_ext.locks.locks cimport StoreLock


@cython.final
cdef class Reservations:
    """What is held for the write that is being made, and for those around it, which it is a part
    of. ``lock``: the store's."""

    def __init__(self, Budget budget not None, StoreLock lock not None):
        self._budget = budget
        self._lock = lock

    def reserve(self, admit, *, bint is_promised=False):
        """Around a write, with the store's lock: ``admit(reservation)`` has it hold what the write
        takes, or raises. Promised: the write is in a log, and cannot be refused."""
        return Reservation(self, admit, is_promised)

    def all(self) -> list[Reservation]:
        """From the inmost on."""
        cdef list found = []
        cdef Reservation reservation = self.inmost
        while reservation is not None:
            found.append(reservation)
            reservation = reservation._around
        return found

    @property
    def outmost(self) -> Reservation | None:
        cdef Reservation reservation = self.inmost
        while reservation is not None and reservation._around is not None:
            reservation = reservation._around
        return reservation

    @property
    def frame_bytes(self) -> int:
        """For what is encoded."""
        return sum([(<Reservation> each).frames.nbytes for each in self.all()])

    @property
    def memtable_bytes(self) -> int:
        return sum([(<Reservation> each).memtable.nbytes for each in self.all()])


@cython.final
cdef class Reservation:
    """For one write: for its keys and rows, encoded, and for a memtable. See Reservations.reserve."""

    def __init__(self, Reservations owner not None, admit, bint is_promised):
        self._owner = owner
        self._admit = admit
        self.frames = Holding(owner._budget, "frames")
        self.memtable = Holding(owner._budget, "memtable")
        self.is_promised = is_promised

    def __enter__(self) -> None:
        self._owner._lock._acquire(True, True)
        self._around = self._owner.inmost
        self._owner.inmost = self
        # A part of what was admitted as a whole.
        self.is_promised = self.is_promised or (
            self._around is not None and self._around.is_promised
        )
        try:
            self._admit(self)
        except BaseException:
            self._leave()
            raise
        self.is_promised = True

    def __exit__(self, *_) -> None:
        self._leave()

    cdef int _leave(self) except -1:
        self._owner.inmost = self._around
        self._around = None
        self.memtable.release()
        self.frames.release()
        return self._owner._lock._release()
