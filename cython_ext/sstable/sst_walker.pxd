from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.index_block cimport IndexBlock
from lsmstate.cython_ext.sstable.key_block cimport KeySearch
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef struct Hit:
    uint64_t key_block       # where its key block lies, to find the row blocks that follow
    uint64_t rows
    uint64_t row_bytes
    uint64_t row_block       # where the first row block lies
    uint32_t key_block_size
    uint32_t row_block_size
    uint32_t position        # given by whoever looks it up
    uint32_t block_index
    uint32_t row_index
    uint8_t flags

cdef struct HitList:
    Hit* items
    size_t count
    size_t capacity

cdef struct SstWalker:
    uint32_t partition
    CachedBlock* index_block
    uint64_t index_offset
    IndexBlock index
    uint32_t index_place
    CachedBlock* key_block
    uint64_t key_offset
    uint32_t key_size
    KeySearch search
    bint stands              # at an entry, of `search`
    bint is_new              # the key block; whoever looks resets it

# Stand nowhere in a file; `end_walker` releases what was loaded since.
cdef void begin_walker(SstWalker* walker) noexcept nogil
cdef void end_walker(Sst sst, SstWalker* walker) noexcept nogil
cdef int load_index(Sst sst, SstWalker* walker, uint32_t partition) except -1 nogil
# Load a key block of the partition; stand before its first entry.
cdef int load_keys(Sst sst, SstWalker* walker, uint32_t place) except -1 nogil
# Load the key block in which the key would be; False: it is greater than all of the file. Keys
# ascend from call to call.
cdef bint find_block(
    Sst sst, SstWalker* walker, const uint8_t* key, size_t size
) except -1 nogil
# Load the key block behind the current one; False: there is none. The one before it.
cdef bint next_block(Sst sst, SstWalker* walker) except -1 nogil
cdef bint previous_block(Sst sst, SstWalker* walker) except -1 nogil
# Whether a key behind the block's first one would be in the block.
cdef bint is_in_block(
    Sst sst, SstWalker* walker, const uint8_t* key, size_t size
) except -1 nogil
# Stand at the first entry whose key is not less than this, which is greater than the current one,
# in this block or behind it; False: the file has none.
cdef bint seek_entry(Sst sst, SstWalker* walker, const uint8_t* key, size_t size) except -1 nogil
# Stand before the first entry of a restart's group.
cdef bint enter_group(Sst sst, SstWalker* walker, uint32_t restart) except -1 nogil
# Stand at the next entry; False: the file has no more.
cdef bint advance(Sst sst, SstWalker* walker) except -1 nogil
# Note the entry that the walk stands at, under a position.
cdef int put_hit(
    Sst sst, const SstWalker* walker, uint32_t position, HitList* hits
) except -1 nogil
