"""Memory reserved for the writes of one store, from before they are logged until they are done.

It is compiled for the same reason as locks: however a write is interrupted, its reservation is
released before the next write begins, which would otherwise use it.
"""

cimport cython

from lsmstate.cython_ext.memory.budget cimport Budget, Holding
from lsmstate.cython_ext.locks.locks cimport StoreLock


@cython.final
cdef class Reservations:
    """The reservations of the current write, and of the writes that it is a part of. ``lock``: the
    store's."""

    def __init__(self, Budget budget not None, StoreLock lock not None):
        self._budget = budget
        self._lock = lock

    def reserve(self, admit, *, bint is_promised=False):
        """Return the context of a write, with the store's lock. ``admit(reservation)`` reserves
        what the write takes, or raises. Promised: the write is in a log, and cannot be refused."""
        return Reservation(self, admit, is_promised)

    def all(self) -> list[Reservation]:
        """Return the reservations, innermost first."""
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
        """Bytes reserved for encoded keys and rows."""
        return sum([(<Reservation> each).frames.nbytes for each in self.all()])

    @property
    def memtable_bytes(self) -> int:
        return sum([(<Reservation> each).memtable.nbytes for each in self.all()])


@cython.final
cdef class Reservation:
    """The reservation of one write: for its encoded keys and rows, and for a memtable. See
    Reservations.reserve."""

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
