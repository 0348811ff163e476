cimport cython
from libc.stdint cimport uint32_t, uint64_t

from lsmstate.cython_ext.base.coding cimport Buffer
from lsmstate.cython_ext.base.file cimport AppendFile


cdef class BlockOutput:
    cdef AppendFile file
    cdef Buffer raw     # of the block that is being made; empty between two
    cdef Buffer _stored, _scratch
    cdef size_t kept_bytes          # of a block's buffers, from one to the next
    cdef size_t _kept_stored_bytes  # of `_stored`
    cdef uint64_t _key_blocks       # so far
    cdef bint _key_blocks_shrink    # of the last trial

    @cython.final
    cdef inline uint64_t place(self) noexcept nogil:
        """Where in the file the next block begins."""
        return <uint64_t> self.file.size + self._stored.size

    # Seal `raw`; it goes to the file together with the blocks after it.
    cdef int write(self, int kind, int codec, uint64_t* offset, uint32_t* size) except -1 nogil
    # The same of a key block.
    cdef int write_keys(self, int codec, uint64_t* offset, uint32_t* size) except -1 nogil
    # The end of the file is `raw` as it is.
    cdef int write_end(self) except -1 nogil
    # Give back what one huge block has made the buffers grow to; the bytes that they hold.
    cdef size_t trim(self) noexcept nogil
    cdef int _write_out(self, size_t kept) except -1 nogil
