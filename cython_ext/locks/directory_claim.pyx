"""A process's claim to a directory: an entry in a table, and an open file.

It is compiled, so that neither an interrupt nor garbage collection leaves it half released: an
exception of a signal handler in ``__del__`` or in a weak reference's callback is lost.
"""

import os

cimport cython
from posix.unistd cimport getpid

from lsmstate.cython_ext.base.file import Descriptor


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Claim:
    """A claim of the process that made it; released with the object at the latest."""

    cdef dict _table
    cdef tuple _place
    cdef int _process
    cdef object _file

    def __cinit__(self, dict table not None, str directory not None):
        self._table = table
        self._process = getpid()
        self._place = (directory, self._process)

    def __dealloc__(self):
        self._give_up()

    def take(self) -> bool:
        """Enter the claim into the table; return False if the process has another one to the
        directory."""
        return self._table.setdefault(self._place, id(self)) == id(self)

    @property
    def is_held(self) -> bool:
        """Whether it is in the table, and this is its process."""
        return getpid() == self._process and self._table.get(self._place) == id(self)

    def open(self, str path not None) -> int:
        """Open a file, created if necessary, until the claim is released; return the descriptor."""
        if self._file is not None:
            raise RuntimeError("a claim holds one file")
        self._file = Descriptor(path, os.O_RDWR | os.O_CREAT)
        return self._file.fileno()

    def give_up(self) -> None:
        """Release the claim. A second call, or one in a forked child, does nothing."""
        self._give_up()

    cdef int _give_up(self) except -1:
        if getpid() != self._process:
            return 0
        self._file = None  # which closes it
        if self._table.get(self._place) == id(self):
            del self._table[self._place]
        return 0
