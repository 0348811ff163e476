"""The only open, pread, append and sync of table files, with hooks that tests inject faults by.

``set_fault_hook(hook)``: before each operation ``hook(operation, path, offset, size)`` is called
(operations: create, open, read, append, write back, sync, link, rename, remove). It may raise (the operation fails so) or return
an int: an append then writes only that many bytes and fails with EIO, as a torn write does.
The price where no hook is set is one test of a C pointer.
"""

cimport cython
import errno
import os

from libc.errno cimport EINTR, EPERM
from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from posix.fcntl cimport O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY, open as c_open
from posix.unistd cimport close as c_close
from posix.unistd cimport fdatasync, fsync as c_fsync, pread, write

from lsmstate.cython_ext.base.coding cimport reserve

from lsmstate.cython_ext.errors import CorruptionError

cdef extern from *:
    """
    #include <fcntl.h>
    #ifndef O_NOATIME
    #define O_NOATIME 0
    #endif
    #ifdef SYNC_FILE_RANGE_WRITE
    #define begin_write_back(fd, offset, size) \\
        sync_file_range(fd, offset, size, SYNC_FILE_RANGE_WRITE)
    #else
    #define begin_write_back(fd, offset, size) ((void) 0)
    #endif
    """
    int O_NOATIME  # reads do not update the access time: saves two per cent of a read
    void begin_write_back(int descriptor, int64_t offset, int64_t size) nogil

cdef enum:
    WRITE_BACK_BYTES = 1 << 20  # per request: large enough to be worth its cost

cdef object _hook = None
cdef bint _hooked = False


def set_fault_hook(hook) -> None:
    """Install a hook for tests (None: remove it)."""
    global _hook, _hooked
    _hook = hook
    _hooked = hook is not None


cdef int64_t _ask(str operation, str path, int64_t offset, int64_t size) except -2:
    """Return the hook's answer: -1 to continue, otherwise how many bytes a torn append writes."""
    hook = _hook
    if hook is None:  # removed since this thread checked
        return -1
    answer = hook(operation, path, offset, size)
    return -1 if answer is None else <int64_t> answer


@cython.final
cdef class Descriptor:
    """An open file for os and fcntl. ``close``, ``with`` or garbage collection closes it exactly
    once, despite interrupts."""

    cdef int _number

    def __cinit__(self):
        self._number = -1

    def __init__(self, str path not None, int flags, int mode=0o644):
        cdef bytes name = os.fsencode(path)
        cdef const char* place = name
        while self._number < 0:
            with nogil:
                self._number = c_open(place, flags | O_CLOEXEC, mode)
            if self._number < 0 and c_errno != EINTR:
                raise OSError(c_errno, os.strerror(c_errno), path)

    def __dealloc__(self):
        if self._number >= 0:
            c_close(self._number)

    def fileno(self) -> int:
        return self._number

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._number >= 0:
            c_close(self._number)
            self._number = -1


@cython.final
cdef class ReadFile:
    """An immutable file, read at offsets; ``close`` or garbage collection closes it."""

    def __cinit__(self):
        self.descriptor = -1

    def __init__(self, str path not None):
        if _hooked:
            _ask("open", path, 0, 0)
        self.path = path
        self.descriptor = c_open(os.fsencode(path), O_RDONLY | O_CLOEXEC | O_NOATIME)
        if self.descriptor < 0 and c_errno == EPERM:  # another user's file
            self.descriptor = c_open(os.fsencode(path), O_RDONLY | O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(c_errno, os.strerror(c_errno), path)
        self.size = os.fstat(self.descriptor).st_size

    def __dealloc__(self):
        if self.descriptor >= 0:
            c_close(self.descriptor)

    cdef int read_at(self, int64_t offset, uint8_t* target, size_t size) except -1 nogil:
        cdef size_t done = 0
        cdef Py_ssize_t got
        if offset < 0 or offset + <int64_t> size > self.size:
            with gil:
                raise CorruptionError(
                    f"{size} bytes were expected here, the file has {self.size}", self.path, offset
                )
        if _hooked:
            with gil:
                _ask("read", self.path, offset, size)
        while done < size:
            got = pread(self.descriptor, target + done, size - done, offset + done)
            if got < 0:
                if c_errno == EINTR:
                    continue
                with gil:
                    raise OSError(c_errno, os.strerror(c_errno), self.path)
            if got == 0:
                with gil:
                    raise CorruptionError(
                        f"the file ends after {done} of {size} bytes", self.path, offset
                    )
            done += got
        return 0

    cdef const uint8_t* read_ahead(
        self, uint64_t offset, size_t size, ReadAhead* ahead
    ) except? NULL nogil:
        cdef size_t together
        if not is_there(ahead, <void*> self, offset, size):
            if ahead.wanted_end <= offset + size or ahead.wanted_end > <uint64_t> self.size:
                return NULL
            together = ahead.wanted_end - offset
            ahead.bytes.size = 0
            reserve(&ahead.bytes, together)
            self.read_at(offset, ahead.bytes.data, together)
            ahead.bytes.size = together
            ahead.file = <void*> self
            ahead.offset = offset
        return ahead.bytes.data + (offset - ahead.offset)

    def read(self, int64_t offset, Py_ssize_t size) -> bytes:
        """Read exactly `size` bytes at `offset`."""
        cdef bytearray target
        if size < 0 or offset < 0 or offset + size > self.size:
            raise CorruptionError(
                f"{size} bytes were expected here, the file has {self.size}", self.path, offset
            )
        target = bytearray(size)
        self.read_at(offset, <uint8_t*> target, size)
        return bytes(target)

    def close(self) -> None:
        if self.descriptor >= 0:
            c_close(self.descriptor)
            self.descriptor = -1


@cython.final
cdef class AppendFile:
    """A new file, written once from front to back; an existing file is never opened."""

    def __cinit__(self):
        self.descriptor = -1

    def __init__(self, str path not None, bint to_be_synced=False):
        """Create the file. ``to_be_synced`` hints that the system should begin to write early, so
        that ``sync`` waits only briefly. The hint cannot fail."""
        if _hooked:
            _ask("create", path, 0, 0)
        self.path = path
        self.to_be_synced = to_be_synced
        self.descriptor = c_open(
            os.fsencode(path), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0o644
        )
        if self.descriptor < 0:
            raise OSError(c_errno, os.strerror(c_errno), path)
        self.size = 0

    def __dealloc__(self):
        if self.descriptor >= 0:
            c_close(self.descriptor)

    cdef int append_c(self, const uint8_t* source, size_t size) except -1 nogil:
        cdef int64_t torn = self._begin_append(size)
        self._put(source, size if torn < 0 else min(size, <size_t> torn))
        if torn >= 0:
            self._fail_torn()
        return 0

    cdef int64_t _begin_append(self, size_t size) except -2 nogil:
        """Return how many bytes may be written before the append fails; -1: all."""
        if self.descriptor < 0:
            with gil:
                raise ValueError(f"append to the closed file {self.path}")
        if not _hooked:
            return -1
        with gil:
            return _ask("append", self.path, self.size, size)

    cdef int _put(self, const uint8_t* source, size_t size) except -1 nogil:
        cdef size_t done = 0
        cdef Py_ssize_t put
        while done < size:
            put = write(self.descriptor, source + done, size - done)
            if put < 0:
                if c_errno == EINTR:
                    continue
                with gil:
                    raise OSError(c_errno, os.strerror(c_errno), self.path)
            done += put
        self.size += done
        if self.to_be_synced and self.size - self.written_back >= WRITE_BACK_BYTES:
            self._begin_write_back()
        return 0

    cdef int _begin_write_back(self) except -1 nogil:
        if _hooked:
            with gil:
                _ask("write back", self.path, self.written_back, self.size - self.written_back)
        begin_write_back(self.descriptor, self.written_back, self.size - self.written_back)
        self.written_back = self.size
        return 0

    cdef int _fail_torn(self) except -1 nogil:
        with gil:
            raise OSError(errno.EIO, "torn write (injected)", self.path)

    def append(self, *pieces) -> None:
        """Write pieces at the end; for the hook they are one append."""
        cdef const uint8_t[::1] piece
        cdef size_t size
        cdef size_t left = sum([len(data) for data in pieces])
        cdef int64_t torn = self._begin_append(left)
        if torn >= 0:
            left = min(left, <size_t> torn)
        for piece in pieces:
            size = min(left, <size_t> piece.shape[0])
            left -= size
            if size:
                with nogil:
                    self._put(&piece[0], size)
        if torn >= 0:
            self._fail_torn()

    def sync(self) -> None:
        """Force what was written to disk; after an error it may not be there."""
        cdef int failed
        if _hooked:
            _ask("sync", self.path, 0, self.size)
        with nogil:
            failed = fdatasync(self.descriptor)
        if failed:
            raise OSError(c_errno, os.strerror(c_errno), self.path)

    def close(self) -> None:
        """Close the file; after an error it may be incomplete (network file systems)."""
        cdef int descriptor = self.descriptor
        self.descriptor = -1
        if descriptor >= 0 and c_close(descriptor) and c_errno != EINTR:
            raise OSError(c_errno, os.strerror(c_errno), self.path)


def sync_directory(str path not None) -> None:
    """Make the names in a directory durable."""
    _sync_path(path)


def sync_file(str path not None) -> None:
    """Sync a file that is closed, or that another process wrote."""
    _sync_path(path)


cdef int _sync_path(str path) except -1:
    cdef int descriptor, failed, reason
    if _hooked:
        _ask("sync", path, 0, 0)
    descriptor = c_open(os.fsencode(path), O_RDONLY | O_CLOEXEC)
    if descriptor < 0:
        raise OSError(c_errno, os.strerror(c_errno), path)
    with nogil:
        failed = c_fsync(descriptor)
        reason = c_errno
        c_close(descriptor)
    if failed:
        raise OSError(reason, os.strerror(reason), path)
    return 0


def link(str source not None, str target not None) -> None:
    """Give a sealed file a second name; OSError if the file system cannot (other device)."""
    if _hooked:
        _ask("link", target, 0, 0)
    os.link(source, target)


def rename(str source not None, str target not None) -> None:
    """Give a file its final unique name. The hook gets the final name."""
    if _hooked:
        _ask("rename", target, 0, 0)
    os.rename(source, target)


def remove(str path not None) -> None:
    """Delete a file; an absent one is no error."""
    if _hooked:
        _ask("remove", path, 0, 0)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
