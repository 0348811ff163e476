"""Sealed blocks that are written to a file, many at a time."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from lsmstate.cython_ext.sstable.block cimport BLOCK_KEYS, seal_block
from lsmstate.cython_ext.base.compression cimport CODEC_LZ4, CODEC_NONE
from lsmstate.cython_ext.base.coding cimport put_bytes, release, shrink
from lsmstate.cython_ext.base.file cimport AppendFile

cdef enum:
    # LZ4 hardly shrinks most key blocks, whose common prefixes are already left out. One in so many
    # is tried. The others are stored uncompressed unless that one shrank to at most so many
    # eighths.
    KEY_BLOCKS_PER_TRIAL = 16
    WORTHWHILE_EIGHTHS = 5
    LEAST_KEPT_BYTES = 64 << 10
    # Bytes per write, also aligned in the file: otherwise the system handles single pages, which
    # costs it twice as much, and single blocks four times (bench/README.md). A power of two.
    WRITE_BYTES = 128 << 10


@cython.final
cdef class BlockOutput:
    """Appends blocks of about `block_bytes` to one file."""

    def __cinit__(self, AppendFile file not None, size_t block_bytes):
        self.file = file
        self.kept_bytes = max(<size_t> LEAST_KEPT_BYTES, 2 * block_bytes)
        self._kept_stored_bytes = 2 * WRITE_BYTES + self.kept_bytes  # grown by half from below one

    def __dealloc__(self):
        release(&self.raw)
        release(&self._stored)
        release(&self._scratch)

    cdef int write(self, int kind, int codec, uint64_t* offset, uint32_t* size) except -1 nogil:
        offset[0] = self.place()
        seal_block(&self._stored, kind, codec, &self.raw, &self._scratch, offset[0])
        size[0] = <uint32_t> (self.place() - offset[0])
        self.raw.size = 0
        self._scratch.size = 0
        if self._stored.capacity > self._kept_stored_bytes:
            self._write_out(0)  # to give its memory back
        elif self._stored.size >= WRITE_BYTES:
            self._write_out(self.place() & (WRITE_BYTES - 1))
        return 0

    cdef int write_keys(self, int codec, uint64_t* offset, uint32_t* size) except -1 nogil:
        cdef uint32_t raw_size = <uint32_t> self.raw.size
        cdef bint is_trial = self._key_blocks % KEY_BLOCKS_PER_TRIAL == 0
        cdef bint is_packed = codec != CODEC_LZ4 or is_trial or self._key_blocks_shrink
        self.write(BLOCK_KEYS, codec if is_packed else CODEC_NONE, offset, size)
        if is_trial:
            self._key_blocks_shrink = size[0] <= raw_size // 8 * WORTHWHILE_EIGHTHS
        self._key_blocks += 1
        return 0

    cdef int write_end(self) except -1 nogil:
        put_bytes(&self._stored, self.raw.data, self.raw.size)
        self.raw.size = 0
        self._write_out(0)
        return 0

    cdef size_t trim(self) noexcept nogil:
        shrink(&self.raw, self.kept_bytes)
        shrink(&self._stored, self._kept_stored_bytes)
        shrink(&self._scratch, self.kept_bytes)
        return self.raw.capacity + self._stored.capacity + self._scratch.capacity

    cdef int _write_out(self, size_t kept) except -1 nogil:
        """Write what is stored, except so many bytes at its end."""
        cdef size_t size = self._stored.size - kept
        self.file.append_c(self._stored.data, size)
        memmove(self._stored.data, self._stored.data + size, kept)
        self._stored.size = kept
        return 0
