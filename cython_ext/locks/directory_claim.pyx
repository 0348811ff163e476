"""A process's claim to a directory: an entry in a table, and a file that is held open.

Compiled, so that neither an interrupt nor the end of an object that nobody holds any more leaves it
half given up: what a handler raises in ``__del__`` or in a weak reference's callback is lost.
"""

import os

cimport cython
from posix.unistd cimport getpid

from lsmstate.cython_ext.base.file import Descriptor


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Claim:
    """One of the process that made it; given up with the object at the latest."""

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
        """Put it into the table; False if the process has another one to the directory."""
        return self._table.setdefault(self._place, id(self)) == id(self)

    @property
    def is_held(self) -> bool:
        """Whether it is in the table, and this is its process."""
        return getpid() == self._process and self._table.get(self._place) == id(self)

    def open(self, str path not None) -> int:
        """The descriptor of a file, made if need be, that stays open until the claim is given up."""
        if self._file is not None:
            raise RuntimeError("a claim holds one file")
        self._file = Descriptor(path, os.O_RDWR | os.O_CREAT)
        return self._file.fileno()

    def give_up(self) -> None:
        """A second call, or one in a forked child, does nothing."""
        self._give_up()

    cdef int _give_up(self) except -1:
        if getpid() != self._process:
            return 0
        self._file = None  # which closes it
        if self._table.get(self._place) == id(self):
            del self._table[self._place]
        return 0
