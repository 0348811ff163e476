"""Lookup: where the rows of a probe's keys lie, and how many there are.

Sorted keys visit each run once, block by block, and each memtable; no row is read. Runs and
memtables are numbered by age as *tiers*: all runs, oldest first, then all memtables.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from lsmstate.cython_ext.memtable.btree cimport GROUP, Entry, Page, Search, Tree, find_group
from lsmstate.cython_ext.memory.budget cimport PROBE, Budget
from lsmstate.cython_ext.entries.entry_source cimport FLAG_RESET
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.memtable.memtable cimport Memtable, tree_of
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.memory.read_budget cimport take_memory
from lsmstate.cython_ext.rows.row_codec cimport RowCodec
from lsmstate.cython_ext.sstable.sst_probe cimport ProbeCounters, probe_sst
from lsmstate.cython_ext.sstable.sst_walker cimport Hit
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef enum:
    HEAD_BYTES = 24          # of a key: what is there from the start, and its counts
    MOST_AHEAD_BYTES = 512   # behind these the processor sees by itself what comes next


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class Lookup:
    """Hits of a batch of keys in one stream. `keys` bears the stream's number."""

    def __init__(
        self, KeyBatch keys not None, uint32_t stream, positions, RowCodec codec not None,
        Budget budget not None, Py_ssize_t run_room,
    ):
        cdef const int64_t[::1] wanted
        cdef uint8_t* mask = NULL
        cdef Py_ssize_t i
        self.keys = keys.of_stream(stream)
        self.codec = codec
        self.budget = budget
        self.tables = []
        self.memtables = []
        self.n = keys.n
        if self.keys is not keys:
            keys = self.keys
            self._charge(<int64_t> keys.offsets[keys.n])
            self.copied = <int64_t> keys.offsets[keys.n]
        self._charge((self.n + 1) * HEAD_BYTES)
        self.run_room = run_room
        self.runs = <RunHits*> calloc(run_room + 1, sizeof(RunHits))
        self.selected = <uint32_t*> malloc((keys.n_valid + 1) * sizeof(uint32_t))
        self.start = <int32_t*> calloc(self.n + 1, sizeof(int32_t))
        if not self.runs or not self.selected or not self.start:
            raise MemoryError(f"no memory to look up {self.n} keys")
        if positions is None:
            for i in range(keys.n_valid):
                self.selected[i] = keys.order[i]
            self.selected_count = keys.n_valid
            return
        wanted = np.ascontiguousarray(positions, dtype=np.int64)
        mask = <uint8_t*> calloc(self.n + 1, 1)
        if mask == NULL:
            raise MemoryError(f"no memory to look up {self.n} keys")
        try:
            for i in range(wanted.shape[0]):
                if not 0 <= wanted[i] < self.n:
                    raise IndexError(f"key position {wanted[i]} of {self.n}")
                mask[wanted[i]] = 1
            for i in range(keys.n_valid):
                if mask[keys.order[i]]:
                    self.selected[self.selected_count] = keys.order[i]
                    self.selected_count += 1
        finally:
            free(mask)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.runs != NULL:
            for i in range(self.run_count):
                free(self.runs[i].hits.items)
                free(self.runs[i].files)
                free(self.runs[i].first)
        for i in range(self.memtable_count):
            free(self.entries[i])
        free(self.runs)
        free(self.selected)
        free(self.entries)
        free(self.start)
        free(self.floor)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    cdef int _charge(self, int64_t size) except -1:
        take_memory(self.budget, size)
        self.charged += size
        return 0

    def own_keys(self) -> None:
        """Note that the keys were encoded for this lookup. Otherwise they, and their memory, belong
        to the caller."""
        self._charge(self.keys.nbytes)

    def end_search(self) -> None:
        """End the search: keys that were copied to bear the stream's number are released."""
        if self.copied:
            self.budget.release(PROBE, self.copied)
            self.charged -= self.copied
            self.copied = 0
            self.keys = KeyBatch.from_bytes([])

    def key_range(self) -> tuple[bytes, bytes] | None:
        """Return the least and the greatest key looked up, as stored; None if there is none."""
        cdef uint32_t low, high
        if self.selected_count == 0:
            return None
        low = self.selected[0]
        high = self.selected[self.selected_count - 1]
        return (
            <bytes> self.keys.data[self.keys.offsets[low]:self.keys.offsets[low + 1]],
            <bytes> self.keys.data[self.keys.offsets[high]:self.keys.offsets[high + 1]],
        )

    def delete_ranges(self, KeyRanges deleted not None) -> None:
        """Note that the next tier deleted these keys in all tiers searched so far."""
        cdef Py_ssize_t i
        cdef int32_t tier = <int32_t> (self.run_count + self.memtable_count)
        cdef uint64_t* offsets = self.keys.offsets
        cdef uint32_t position
        if deleted.count == 0:
            return
        if self.floor == NULL:
            self._charge((self.n + 1) * <int64_t> sizeof(int32_t))
            self.floor = <int32_t*> calloc(self.n + 1, sizeof(int32_t))
            if self.floor == NULL:
                raise MemoryError(f"no memory to look up {self.n} keys")
        with nogil:
            for i in range(self.selected_count):
                position = self.selected[i]
                if deleted.covers(
                    self.keys.data + offsets[position], offsets[position + 1] - offsets[position]
                ):
                    self.floor[position] = tier

    def search_run(self, list files not None) -> int:
        """Look the keys up in the files of one run, in key order; runs come oldest first. Return
        the number of hits."""
        cdef RunHits* run = &self.runs[self.run_count]
        cdef Sst sst
        cdef Py_ssize_t reached = 0
        cdef size_t before, i
        cdef void* room
        if self.run_count >= self.run_room:
            raise ValueError(f"more than {self.run_room} runs")
        self.run_count += 1
        for sst in files:
            before = run.hits.count
            with nogil:
                reached = probe_sst(
                    sst, self.keys, self.selected, self.selected_count, reached, &run.hits,
                    &self.probe_counters,
                )
            if run.hits.count > before:
                self.tables.append(sst)
                if run.hits.capacity > run.file_room:
                    self._charge(
                        <int64_t> (run.hits.capacity - run.file_room)
                        * <int64_t> (sizeof(Hit) + sizeof(void*))
                    )
                    room = realloc(run.files, run.hits.capacity * sizeof(void*))
                    if room == NULL:
                        raise MemoryError(f"no memory for {run.hits.capacity} hits")
                    run.files = <void**> room
                    run.file_room = run.hits.capacity
                for i in range(before, run.hits.count):
                    run.files[i] = <void*> sst
        if run.hits.count:
            self._charge((self.n + 1) * <int64_t> sizeof(int32_t))
            run.first = <int32_t*> malloc((self.n + 1) * sizeof(int32_t))
            if run.first == NULL:
                raise MemoryError(f"no memory to look up {self.n} keys")
            memset(run.first, 0xFF, (self.n + 1) * sizeof(int32_t))
            for i in range(run.hits.count, 0, -1):
                run.first[run.hits.items[i - 1].position] = <int32_t> (i - 1)
        return run.hits.count

    def search_memtable(self, Memtable memtable not None) -> None:
        """Look the keys up in a memtable, newer than every run; memtables come oldest first."""
        cdef Page* finger = NULL
        cdef Search searches[GROUP]
        cdef Entry** entries
        cdef Py_ssize_t i = 0
        cdef int k, count
        cdef size_t position
        cdef const uint8_t* key
        cdef Tree* tree
        if self.selected_count == 0:
            return
        key = self.keys.data + self.keys.offsets[self.selected[0]]
        tree = tree_of(memtable, (<uint32_t> key[0] << 8) | key[1])
        if tree == NULL:
            return
        entries = self._add_memtable(memtable)
        with nogil:
            while i < self.selected_count:
                count = <int> min(GROUP, self.selected_count - i)
                for k in range(count):
                    position = self.selected[i + k]
                    searches[k].key = self.keys.data + self.keys.offsets[position]
                    searches[k].size = (
                        self.keys.offsets[position + 1] - self.keys.offsets[position]
                    )
                find_group(tree, &finger, searches, count)
                for k in range(count):
                    entries[self.selected[i + k]] = searches[k].entry
                i += count

    cdef Entry** _add_memtable(self, Memtable memtable) except NULL:
        """Make room for one entry per key position."""
        cdef void* grown
        cdef Entry** entries
        self._charge((self.n + 1) * <int64_t> sizeof(Entry*))
        grown = realloc(self.entries, (self.memtable_count + 1) * sizeof(Entry**))
        if grown == NULL:
            raise MemoryError(f"no memory to look up {self.n} keys")
        self.entries = <Entry***> grown
        entries = <Entry**> calloc(self.n + 1, sizeof(Entry*))
        if entries == NULL:
            raise MemoryError(f"no memory to look up {self.n} keys")
        self.entries[self.memtable_count] = entries
        self.memtable_count += 1
        self.memtables.append(memtable)
        return entries

    def count(self) -> tuple:
        """Return (rows, bytes) per key position without deleted rows; two int64 arrays."""
        counts = np.zeros(self.n, dtype=np.int64)
        sizes = np.zeros(self.n, dtype=np.int64)
        cdef int64_t[::1] count_view = counts
        cdef int64_t[::1] size_view = sizes
        cdef Py_ssize_t i, tier, floor
        cdef uint32_t position
        cdef bint hidden
        with nogil:
            for i in range(self.selected_count):
                position = self.selected[i]
                hidden = False
                tier = self.run_count + self.memtable_count
                self.start[position] = <int32_t> tier
                floor = self.floor[position] if self.floor != NULL else 0
                while tier > floor and not hidden:
                    tier -= 1
                    if self.holds(tier, position):
                        self.start[position] = <int32_t> tier
                        hidden = self._add(
                            tier, position, &count_view[position], &size_view[position]
                        )
        return counts, sizes

    cdef bint _add(
        self, Py_ssize_t tier, uint32_t position, int64_t* rows, int64_t* row_bytes
    ) noexcept nogil:
        """Count the rows of the key in a tier; return whether the tier hides all older ones."""
        cdef RunHits* run
        cdef Entry* entry
        cdef Hit* hit
        cdef size_t h
        cdef bint hidden = False
        if tier >= self.run_count:
            entry = self.entries[tier - self.run_count][position]
            rows[0] += entry.rows
            row_bytes[0] += <int64_t> entry.row_bytes
            return (entry.flags & FLAG_RESET) != 0
        run = &self.runs[tier]
        for h in range(<size_t> run.first[position], run.hits.count):
            hit = &run.hits.items[h]
            if hit.position != position:
                break
            rows[0] += <int64_t> hit.rows
            row_bytes[0] += <int64_t> hit.row_bytes
            hidden = hidden or (hit.flags & FLAG_RESET) != 0
        return hidden

    cdef void prefetch_hits(self, uint32_t position) noexcept nogil:
        """Prefetch what is known of a key: in a large batch it has left the processor's caches."""
        cdef Py_ssize_t tier
        cdef const Hit* hit
        for tier in range(self.start[position], self.run_count):
            if self.holds(tier, position):
                hit = &self.runs[tier].hits.items[self.runs[tier].first[position]]
                prefetch_line(hit)
                prefetch_line(<const uint8_t*> (hit + 1) - 1)

    cdef void prefetch(self, uint32_t position, bint rows) noexcept nogil:
        """Prefetch a key's rows in the block cache and in memtables, or else what locates them:
        slots of the cache and entries of memtables."""
        cdef Py_ssize_t tier
        cdef int32_t first
        cdef RunHits* run
        cdef Entry* entry
        cdef Hit* hit
        for tier in range(self.start[position], self.run_count + self.memtable_count):
            if not self.holds(tier, position):
                continue
            if tier >= self.run_count:
                entry = self.entries[tier - self.run_count][position]
                prefetch_line(entry.first if rows else <void*> entry)
                continue
            run = &self.runs[tier]
            first = run.first[position]
            hit = &run.hits.items[first]
            if not rows:
                (<Sst> run.files[first]).cache.prefetch_slot(
                    (<Sst> run.files[first]).uid, hit.row_block
                )
            elif hit.rows:
                (<Sst> run.files[first]).cache.prefetch(
                    (<Sst> run.files[first]).uid, hit.row_block,
                    hit.row_index * (hit.row_bytes // hit.rows),
                    min(hit.row_bytes, <uint64_t> MOST_AHEAD_BYTES),
                )

    def counters(self) -> tuple:
        """Return the pairs of a key and a visited run, filter checks, negatives, and false
        positives."""
        cdef ProbeCounters* found = &self.probe_counters
        return (
            found.visited, found.filter_checks, found.filter_negatives, found.false_positives,
        )
