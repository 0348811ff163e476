"""The only open, pread, append and sync of table files, with hooks that tests inject faults by.

``set_fault_hook(hook)``: before each operation ``hook(operation, path, offset, size)`` is called
(operations: create, open, read, append, write back, sync, link, rename, remove). It may raise (the operation fails so) or return
an int: an append then writes only that many bytes and fails with EIO, as a torn write does.
The price where no hook is set is one test of a C pointer.

``set_write_limit(size)``: for tests, the system takes no more than that many bytes at a time. It
may do so at any write; what is left is then written by the next one.
"""

cimport cython
import errno
import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, EPERM
from libc.errno cimport errno as c_errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.fcntl cimport O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY, open as c_open
from posix.unistd cimport close as c_close
from posix.types cimport mode_t
from posix.unistd cimport fdatasync, fsync as c_fsync, pread

from lsmstate.cython_ext.base.coding cimport reserve

from lsmstate.cython_ext.errors import CorruptionError

cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/uio.h>
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
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t writev(int descriptor, const iovec* parts, int count) nogil
    int O_NOATIME  # reads do not update the access time: saves two per cent of a read
    void begin_write_back(int descriptor, int64_t offset, int64_t size) nogil

cdef enum:
    WRITE_BACK_BYTES = 1 << 20  # per request: large enough to be worth its cost
    MOST_PARTS = 1024  # per call of writev: no system has a smaller IOV_MAX

cdef object _hook = None
cdef bint _hooked = False
cdef size_t _most_bytes = <size_t> -1  # a write of a test is cut to so many


def set_fault_hook(hook) -> None:
    """Install a hook for tests (None: remove it)."""
    global _hook, _hooked
    _hook = hook
    _hooked = hook is not None


def set_write_limit(size) -> None:
    """Limit how many bytes one system call writes, for tests (None: no limit)."""
    global _most_bytes
    if size is not None and size < 1:
        raise ValueError(f"a limit of {size} bytes: nothing would ever be written")
    _most_bytes = <size_t> -1 if size is None else size


cdef int _opened(bytes name, int flags, mode_t mode=0) except -2:
    """Return the descriptor, or -1 with errno. A signal does not interrupt it."""
    cdef const char* place = name
    cdef int descriptor
    while True:
        with nogil:
            descriptor = c_open(place, flags | O_CLOEXEC, mode)
        if descriptor >= 0 or c_errno != EINTR:
            return descriptor


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
        self._number = _opened(os.fsencode(path), flags, mode)
        if self._number < 0:
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
        self.descriptor = _opened(os.fsencode(path), O_RDONLY | O_NOATIME)
        if self.descriptor < 0 and c_errno == EPERM:  # another user's file
            self.descriptor = _opened(os.fsencode(path), O_RDONLY)
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
        self.descriptor = _opened(
            os.fsencode(path), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0o644
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
        cdef iovec part
        part.iov_base = <void*> source
        part.iov_len = size
        return _append_all(self, &part, 1, size)

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
        """Write pieces at the end, with one system call if the system takes them all; for the hook
        they are one append."""
        cdef Py_ssize_t count = len(pieces), held = 0
        cdef Py_buffer* views = <Py_buffer*> malloc((count + 1) * sizeof(Py_buffer))
        cdef iovec* parts = <iovec*> malloc((count + 1) * sizeof(iovec))
        cdef size_t size = 0
        cdef int64_t torn
        try:
            if views == NULL or parts == NULL:
                raise MemoryError(f"no memory to write {count} pieces")
            for piece in pieces:
                PyObject_GetBuffer(piece, &views[held], PyBUF_SIMPLE)
                parts[held].iov_base = views[held].buf
                parts[held].iov_len = views[held].len
                size += parts[held].iov_len
                held += 1
            torn = self._begin_append(size)
            if torn >= 0:
                size = min(size, <size_t> torn)
            with nogil:
                _append_all(self, parts, count, size)
            if torn >= 0:
                self._fail_torn()
        finally:
            while held > 0:
                held -= 1
                PyBuffer_Release(&views[held])
            free(views)
            free(parts)

    def sync(self) -> None:
        """Force what was written to disk; after an error it may not be there."""
        cdef int failed
        if _hooked:
            _ask("sync", self.path, 0, self.size)
        while True:
            with nogil:
                failed = fdatasync(self.descriptor)
            if not failed:
                return
            if c_errno != EINTR:
                raise OSError(c_errno, os.strerror(c_errno), self.path)

    def close(self) -> None:
        """Close the file; after an error it may be incomplete (network file systems)."""
        cdef int descriptor = self.descriptor
        self.descriptor = -1
        if descriptor >= 0 and c_close(descriptor) and c_errno != EINTR:
            raise OSError(c_errno, os.strerror(c_errno), self.path)


cdef int _append_all(
    AppendFile file, iovec* parts, Py_ssize_t count, size_t size
) except -1 nogil:
    _write_all(file.descriptor, file.path, parts, count, size)
    file.size += size
    if file.to_be_synced and file.size - file.written_back >= WRITE_BACK_BYTES:
        file._begin_write_back()
    return 0


cdef int _write_all(
    int descriptor, str path, iovec* parts, Py_ssize_t count, size_t size
) except -1 nogil:
    """Write the first ``size`` bytes of the parts, which are consumed. The system may write fewer
    bytes than requested; it is then called again. After an OSError some may be written."""
    cdef size_t asked, left
    cdef Py_ssize_t put, last
    cdef int reason
    while size > 0:
        while parts.iov_len == 0:
            parts += 1
            count -= 1
        last = 0
        asked = parts.iov_len
        while asked < size and asked < _most_bytes and last + 1 < min(count, MOST_PARTS):
            last += 1
            asked += parts[last].iov_len
        left = parts[last].iov_len
        if asked > min(size, _most_bytes):
            parts[last].iov_len -= asked - min(size, _most_bytes)
        put = writev(descriptor, parts, <int> (last + 1))
        parts[last].iov_len = left
        if put <= 0:
            if put < 0 and c_errno == EINTR:
                continue
            with gil:
                reason = EIO if put == 0 else c_errno  # it took nothing: it would take nothing ever
                raise OSError(reason, os.strerror(reason), path)
        size -= put
        while put > 0:
            left = min(<size_t> put, parts.iov_len)
            parts.iov_base = <uint8_t*> parts.iov_base + left
            parts.iov_len -= left
            put -= left
            if parts.iov_len == 0:
                parts += 1
                count -= 1
    return 0


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
    descriptor = _opened(os.fsencode(path), O_RDONLY)
    if descriptor < 0:
        raise OSError(c_errno, os.strerror(c_errno), path)
    while True:
        with nogil:
            failed = c_fsync(descriptor)
            reason = c_errno
        if not failed or reason != EINTR:
            break
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
