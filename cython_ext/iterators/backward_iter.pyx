"""Entries of a memtable and of an SSTable in descending key order; the rows of a key stay in order.

Leaves of a memtable's tree link in both directions. Key blocks are prefix-coded, so a group of
entries is decoded from its restart and then returned from its end.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from lsmstate.cython_ext.sstable.block cimport BLOCK_INDEX, BLOCK_KEYS, BLOCK_TOP
from lsmstate.cython_ext.memtable.btree cimport Tree, find_place, go_back, last_place
from lsmstate.cython_ext.base.coding cimport compare, put_bytes, release
from lsmstate.cython_ext.sstable.index_block cimport index_entry, index_search
from lsmstate.cython_ext.sstable.key_block cimport (
    RESTART_ENTRIES, KeyEntry, may_hold, next_entry, restart_before, restart_place,
)
from lsmstate.cython_ext.memtable.memtable cimport Memtable, MemtableSource, tree_of
from lsmstate.cython_ext.sstable.sst_reader cimport USE_SCAN, Sst
from lsmstate.cython_ext.sstable.sst_source cimport SstSource


@cython.final
cdef class BackwardMemtableSource(MemtableSource):
    """Entries of a memtable, greatest key first."""

    def __init__(self, Memtable memtable not None):
        self.memtable = memtable
        self.deleted = memtable.deleted
        self._enter_from_behind(<int64_t> memtable.tree_count - 1)

    cdef void _enter_from_behind(self, int64_t stream) noexcept nogil:
        """Seek to the last key of the last non-empty stream up to this one."""
        self.following.leaf = NULL
        while self.following.leaf == NULL and stream >= 0:
            if stream < self.memtable.tree_count:
                last_place(&self.memtable.trees[stream], &self.following)
                self.stream = <uint32_t> stream
            stream -= 1

    cdef void _step(self) noexcept nogil:
        go_back(&self.following)
        if self.following.leaf == NULL:
            self._enter_from_behind(<int64_t> self.stream - 1)

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef Tree* tree
        cdef uint32_t stream = 0
        self.chunk = NULL
        if size > 0:
            stream = <uint32_t> key[0] << 8
        if size > 1:
            stream |= key[1]
        tree = tree_of(self.memtable, stream)
        if tree == NULL or size < 2:
            self._enter_from_behind(<int64_t> stream - 1)
            return 0
        self.stream = stream
        find_place(tree, key, size, &self.following)
        if self.following.leaf == NULL:
            last_place(tree, &self.following)
        else:
            go_back(&self.following)
        if self.following.leaf == NULL:
            self._enter_from_behind(<int64_t> stream - 1)
        return 0


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class BackwardSstSource(SstSource):
    """Entries of one file, greatest key first."""

    def __init__(self, Sst sst not None):
        self.sst = sst
        self.use = USE_SCAN
        self.partition = <uint32_t> -1
        self.home_partition = sst.top.count
        self.home_place = 0
        self.restarts_left = 0
        self.group_left = 0

    def __dealloc__(self):
        release(&self.group_keys)
        release(&self.reached)

    cdef int next_key(self) except -1 nogil:
        cdef const uint8_t* key
        cdef size_t size
        self.done_with_row()
        self._come_home()
        while True:
            while self.group_left == 0:
                if self.restarts_left == 0 and self._previous_key_block() == 0:
                    return 0
                self.restarts_left -= 1
                self._decode_group(self.restarts_left)
            self.group_left -= 1
            if not self._began_earlier():
                break
        key = self._group_key(self.group_left, &size)
        self.key_buffer.size = 0
        put_bytes(&self.key_buffer, key, size)
        self.entry = self.group[self.group_left]
        self._begin_rows()
        self._give()
        return 1

    cdef int _come_home(self) except -1 nogil:
        """Return to the current key block, if the rows of a huge key led away from it."""
        if self.index_block == NULL:
            return 0
        if self.partition != self.home_partition:
            self.partition = self.home_partition
            self._load_index()
        elif self.index_place == self.home_place:
            return 0
        self.index_place = self.home_place
        self._load_key_block()
        return 0

    cdef int _previous_key_block(self) except -1 nogil:
        """Return 1 with the previous block loaded, 0 at the start of the file."""
        while self.home_place == 0:
            if self.home_partition == 0:
                return 0
            self.home_partition -= 1
            self.partition = self.home_partition
            self._load_index()
            self.home_place = self.index.count
        self.home_place -= 1
        self.index_place = self.home_place
        self._load_key_block()
        self.restarts_left = self.keys.restart_count
        return 1

    cdef int _decode_group(self, uint32_t restart) except -1 nogil:
        """Decode the entries from one restart to the next."""
        cdef const uint8_t* place = restart_place(&self.keys, restart)
        cdef const uint8_t* end = self.keys.entries_end
        cdef KeyEntry entry
        if restart + 1 < self.keys.restart_count:
            end = restart_place(&self.keys, restart + 1)
        memset(&entry, 0, sizeof(KeyEntry))
        self.key_buffer.size = 0
        self.group_keys.size = 0
        self.group_left = 0
        while place != NULL and place < end and self.group_left < RESTART_ENTRIES:
            place = next_entry(&self.keys, place, &self.key_buffer, &entry)
            if place == NULL or not may_hold(&self.keys, &entry):
                self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
            put_bytes(&self.group_keys, self.key_buffer.data, self.key_buffer.size)
            self.group[self.group_left] = entry
            self.group_ends[self.group_left] = self.group_keys.size
            self.group_left += 1
        if place == NULL or place != end:
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        return self._descend()

    cdef int _descend(self) except -1 nogil:
        """Decode the previous group; it may end with a key that continues in the group decoded
        last."""
        cdef const uint8_t* key
        cdef size_t size
        if self.group_left == 0:
            return 0
        key = self._group_key(self.group_left - 1, &size)
        if self.reached.size and compare(
            key, size, self.reached.data, self.reached.size
        ) > 0:
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        key = self._group_key(0, &size)
        self.reached.size = 0
        put_bytes(&self.reached, key, size)
        return 0

    cdef const uint8_t* _group_key(self, uint32_t i, size_t* size) noexcept nogil:
        cdef size_t start = self.group_ends[i - 1] if i else 0
        size[0] = self.group_ends[i] - start
        return self.group_keys.data + start

    cdef bint _began_earlier(self) except -1 nogil:
        """Test whether the entry continues a key of the previous block, which holds
        its first rows."""
        cdef const uint8_t* key
        cdef const uint8_t* last
        cdef const uint8_t* payload
        cdef size_t size, last_size
        if self.group_left or self.restarts_left or self.home_place == 0:
            return False
        if index_entry(&self.index, self.home_place - 1, &last, &last_size, &payload):
            self.sst.damaged(self.index_block.offset, BLOCK_INDEX)
        key = self._group_key(0, &size)
        return compare(key, size, last, last_size) == 0

    cdef int seek(self, const uint8_t* key, size_t size) except -1 nogil:
        cdef const uint8_t* other
        cdef size_t other_size
        cdef long found
        self._forget()
        self.reached.size = 0
        self.restarts_left = 0
        self.group_left = 0
        self.home_place = 0
        found = index_search(&self.sst.top, 0, key, size)
        if found < 0:
            self.sst.damaged(self.sst._sections[0], BLOCK_TOP)
        self.home_partition = <uint32_t> found
        if self.home_partition == self.sst.top.count:
            return 0  # all keys are less: the end is where an unsought source begins, too
        self.partition = self.home_partition
        self._load_index()
        found = index_search(&self.index, 0, key, size)
        if found < 0 or found >= self.index.count:
            self.sst.damaged(self.index_block.offset, BLOCK_INDEX)
        self.home_place = self.index_place = <uint32_t> found
        self._load_key_block()
        if restart_before(&self.keys, key, size, &self.restarts_left):
            self.sst.damaged(self.key_block.offset, BLOCK_KEYS)
        self._decode_group(self.restarts_left)
        while self.group_left:
            other = self._group_key(self.group_left - 1, &other_size)
            if compare(other, other_size, key, size) < 0:
                break
            self.group_left -= 1
        return 0
