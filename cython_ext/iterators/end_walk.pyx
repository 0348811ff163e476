"""EndWalk: the last key of each range, or the first one, and where its rows lie, in portions.

In every run and every memtable each range's end is found by a search (sst_ends.pyx). The best of them
is the end of the range, and the tiers in which it was found are all that have it. The ends become a
Lookup, as if they had been looked up. Ranges whose end has rows in several key blocks are left open.

Whether an end is live the Lookup tells; of a range whose end is not, a walk has to find another one.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport (
    STREAM_BYTES, Buffer, compare, put_bytes, release, reserve,
)
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.iterators.key_lookup cimport Lookup, RunHits
from lsmstate.cython_ext.keys.encoded_ranges cimport EncodedRanges
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.memory.budget cimport PROBE, Budget
from lsmstate.cython_ext.memory.read_budget cimport take_memory
from lsmstate.cython_ext.memtable.btree cimport (
    GROUP, Entry, Page, Place, Search, Tree, entry_at, find_group, find_place, go_back, key_of,
    last_place,
)
from lsmstate.cython_ext.memtable.memtable cimport Memtable, tree_of
from lsmstate.cython_ext.sstable.sst_ends cimport (
    End, Ends, Found, find_ends_sst, first_above, is_end_of, put_end,
)
from lsmstate.cython_ext.sstable.sst_walker cimport Hit, HitList
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef enum:
    # A portion of ranges with all that is known of them takes about a sixteenth of the cap.
    RANGE_BYTES = 256
    MOST_RANGES = 1 << 14
    LEAST_RANGES = 256


cdef struct Tier:              # what was found in a run or a memtable
    Found* found               # per range
    HitList hits               # of a run
    void** files               # of each hit: the Sst it was found in
    Buffer entries             # of a memtable: Entry*


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class EndWalk:
    """Searches the tiers of a store, portion by portion."""

    cdef EncodedRanges ranges
    cdef Budget budget
    cdef uint32_t stream
    cdef Py_ssize_t begun         # so many ranges are done, in the order of the bounds
    cdef Py_ssize_t most_ranges
    cdef Buffer bounds            # of the portion's ranges, with the stream's number
    cdef Buffer offsets
    cdef Ends ends
    cdef int32_t* places          # per range: the place of its end among the portion's keys; -1: none
    cdef Tier* tiers              # by age: runs, then memtables
    cdef Py_ssize_t tier_count
    cdef Py_ssize_t run_count
    cdef list held                # keeps files and memtables
    cdef int64_t charged

    def __init__(
        self, EncodedRanges ranges not None, uint32_t stream, Budget budget not None, bint is_last
    ):
        cdef int64_t most = budget.limit // 16 // RANGE_BYTES
        self.ranges = ranges
        self.stream = stream
        self.budget = budget
        self.most_ranges = min(<int64_t> MOST_RANGES, max(<int64_t> LEAST_RANGES, most))
        self.ends.is_last = is_last
        self.held = []

    def __dealloc__(self):
        self._forget()
        release(&self.bounds)
        release(&self.offsets)
        release(&self.ends.keys)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    cdef void _forget(self) noexcept:
        """Forget what the portion before found."""
        cdef Py_ssize_t t
        for t in range(self.tier_count):
            free(self.tiers[t].found)
            free(self.tiers[t].hits.items)
            free(self.tiers[t].files)
            release(&self.tiers[t].entries)
        free(self.tiers)
        free(self.ends.items)
        free(self.places)
        self.tiers = NULL
        self.ends.items = NULL
        self.places = NULL
        self.tier_count = 0

    cdef int _pay(self) except -1:
        """Charge the growth of what is held."""
        cdef int64_t held = <int64_t> (
            self.bounds.capacity + self.offsets.capacity + self.ends.keys.capacity
        ) + self.ranges.nbytes
        cdef Py_ssize_t t
        held += self.ends.count * <int64_t> (sizeof(End) + sizeof(int32_t))
        for t in range(self.tier_count):
            held += <int64_t> (self.tiers[t].hits.capacity * (sizeof(Hit) + sizeof(void*)))
            held += <int64_t> self.tiers[t].entries.capacity
            if self.tiers[t].found != NULL:
                held += self.ends.count * <int64_t> sizeof(Found)
        take_memory(self.budget, held - self.charged)
        self.charged = held
        return 0

    def begin(self, Py_ssize_t runs, Py_ssize_t memtables) -> tuple[bytes, bytes] | None:
        """Begin a portion, for which so many runs and memtables are searched, in any order. Return
        its least bound and its greatest one, behind all keys; None: no range is left."""
        cdef Py_ssize_t count = min(self.most_ranges, self.ranges.count - self.begun)
        self._forget()
        self.held = []
        self.ends.count = max(<Py_ssize_t> 0, count)
        if count <= 0:
            return None
        self.tiers = <Tier*> calloc(runs + memtables + 1, sizeof(Tier))
        self.ends.items = <End*> calloc(count, sizeof(End))
        self.places = <int32_t*> malloc(count * sizeof(int32_t))
        if not (self.tiers and self.ends.items and self.places):
            raise MemoryError(f"no memory to search {runs + memtables} tiers for {count} ranges")
        self.tier_count = runs + memtables
        self.run_count = runs
        self.ends.keys.size = 0
        with nogil:
            self._put_bounds(self.ranges)
        self._pay()
        return self._key_range()

    cdef int _put_bounds(self, EncodedRanges ranges) except -1 nogil:
        cdef Py_ssize_t i
        cdef int side
        cdef size_t bound, size, number
        cdef uint8_t* at
        cdef uint64_t* offsets
        self.bounds.size = 0
        self.offsets.size = 0
        reserve(&self.offsets, (2 * self.ends.count + 1) * sizeof(uint64_t))
        offsets = <uint64_t*> self.offsets.data
        offsets[0] = 0
        for i in range(self.ends.count):
            number = self.begun + i
            if self.ends.is_last:
                number = ranges.by_high[number]
            for side in range(2):
                bound = 2 * number + side
                size = ranges.offsets[bound + 1] - ranges.offsets[bound]
                put_bytes(&self.bounds, ranges.data + ranges.offsets[bound], size)
                at = self.bounds.data + self.bounds.size - size
                bound = self.stream + at[1]
                at[0] = <uint8_t> (bound >> 8)
                at[1] = <uint8_t> (bound & 0xFF)
                offsets[2 * i + side + 1] = self.bounds.size
        reserve(&self.bounds, 8)
        self.ends.data = self.bounds.data
        self.ends.offsets = offsets
        return 0

    cdef tuple _key_range(self):
        cdef const uint64_t* at = self.ends.offsets
        cdef Py_ssize_t i, low = 0, high = self.ends.count - 1
        for i in range(self.ends.count):
            if self._order(2 * i, 2 * low) < 0:
                low = i
            if self._order(2 * i + 1, 2 * high + 1) > 0:
                high = i
        return (
            <bytes> self.ends.data[at[2 * low]:at[2 * low + 1]],
            <bytes> self.ends.data[at[2 * high + 1]:at[2 * high + 2]],
        )

    cdef int _order(self, Py_ssize_t a, Py_ssize_t b) noexcept nogil:
        cdef const uint64_t* at = self.ends.offsets
        return compare(
            self.ends.data + at[a], at[a + 1] - at[a], self.ends.data + at[b], at[b + 1] - at[b]
        )

    cdef Tier* _begin_tier(self, Py_ssize_t number) except NULL:
        cdef Tier* tier
        if not 0 <= number < self.tier_count or self.tiers[number].found != NULL:
            raise ValueError(f"tier {number} of {self.tier_count}")
        tier = &self.tiers[number]
        tier.found = <Found*> malloc(self.ends.count * sizeof(Found))
        if tier.found == NULL:
            raise MemoryError(f"no memory to search for {self.ends.count} ranges")
        memset(tier.found, 0xFF, self.ends.count * sizeof(Found))
        return tier

    def walk_run(self, Py_ssize_t run, list files not None, list first_keys not None) -> None:
        """Search the files of a run, in key order; their first keys as stored."""
        cdef Tier* tier = self._begin_tier(run)
        cdef Sst sst
        cdef Py_ssize_t place = 0, stop, number
        cdef size_t before, i
        cdef bytes first
        cdef void* room
        for number, sst in enumerate(files):
            stop = self.ends.count
            if self.ends.is_last:  # the end is in the last file that begins before the bound
                if number == 0:
                    first = first_keys[0]
                    place = first_above(&self.ends, 0, <const uint8_t*> <const char*> first, len(first))
                if number + 1 < len(files):
                    first = first_keys[number + 1]
                    stop = first_above(
                        &self.ends, place, <const uint8_t*> <const char*> first, len(first)
                    )
            before = tier.hits.count
            with nogil:
                place = find_ends_sst(sst, &self.ends, place, stop, tier.found, &tier.hits)
            if tier.hits.count > before:
                self.held.append(sst)
                room = realloc(tier.files, tier.hits.capacity * sizeof(void*))
                if room == NULL:
                    raise MemoryError(f"no memory for {tier.hits.capacity} hits")
                tier.files = <void**> room
                for i in range(before, tier.hits.count):
                    tier.files[i] = <void*> sst
        self._pay()

    def walk_memtable(self, Py_ssize_t number, Memtable memtable not None) -> None:
        """Search a memtable."""
        cdef Tier* tier = self._begin_tier(self.run_count + number)
        cdef Tree* tree = tree_of(memtable, self.stream)
        if tree == NULL:
            return
        self.held.append(memtable)
        with nogil:
            if memtable.keys < 4 * <size_t> self.ends.count:
                self._search_keys(tier, tree)
            else:
                self._search_groups(tier, tree)
        self._pay()

    cdef int _search_keys(self, Tier* tier, const Tree* tree) except -1 nogil:
        """Search for one bound after another: most of them lie between the same two keys."""
        cdef Place behind
        cdef Py_ssize_t i, copy = -1
        cdef const uint64_t* at
        cdef const Entry* entry
        cdef bint has_begun = False
        cdef int side = 1 if self.ends.is_last else 0
        for i in range(self.ends.count):
            at = self.ends.offsets + 2 * i + side
            entry = entry_at(&behind) if has_begun else NULL
            if not has_begun or (entry != NULL and compare(
                key_of(entry), entry.key_size, self.ends.data + at[0], at[1] - at[0]
            ) < 0):
                self._find(tree, at, &behind)
                has_begun = True
                copy = -1
            self._offer(tier, tree, i, &behind, &copy)
        return 0

    cdef void _find(self, const Tree* tree, const uint64_t* at, Place* behind) noexcept nogil:
        """The first entry whose key is not less than a bound."""
        if self._is_behind_all(at):
            behind.leaf = NULL
        else:
            find_place(tree, self.ends.data + at[0], at[1] - at[0], behind)

    cdef bint _is_behind_all(self, const uint64_t* at) noexcept nogil:
        """Whether a bound stands behind the whole stream: a tree is not searched for that."""
        cdef const uint8_t* bound = self.ends.data + at[0]
        return ((<uint32_t> bound[0] << 8) | bound[1]) != self.stream

    cdef int _search_groups(self, Tier* tier, const Tree* tree) except -1 nogil:
        """Search for bounds in groups: most of them are far apart."""
        cdef Search searches[GROUP]
        cdef Place places[GROUP]
        cdef Page* finger = NULL
        cdef Py_ssize_t i = 0, copy
        cdef int k, count
        cdef int side = 1 if self.ends.is_last else 0
        cdef const uint64_t* at
        while i < self.ends.count:
            count = 0
            while count < GROUP and i + count < self.ends.count:
                at = self.ends.offsets + 2 * (i + count) + side
                if self._is_behind_all(at):
                    break  # as are all that follow
                searches[count].key = self.ends.data + at[0]
                searches[count].size = at[1] - at[0]
                count += 1
            if count == 0:
                copy = -1
                places[0].leaf = NULL
                for i in range(i, self.ends.count):
                    self._offer(tier, tree, i, &places[0], &copy)
                break
            find_group(tree, &finger, searches, count)
            for k in range(count):
                places[k].leaf = searches[k].leaf
                places[k].at = searches[k].place
                if places[k].at >= places[k].leaf.count:
                    places[k].leaf = places[k].leaf.next
                    places[k].at = 0
                if places[k].leaf != NULL:
                    prefetch_line(places[k].leaf.items[places[k].at])
            for k in range(count):
                copy = -1
                self._offer(tier, tree, i + k, &places[k], &copy)
            i += count
        return 0

    cdef int _offer(
        self, Tier* tier, const Tree* tree, Py_ssize_t i, const Place* behind, Py_ssize_t* copy
    ) except -1 nogil:
        """Note the entry at a place, or before it, as the end of a range, unless a better one is
        known. `behind`: the first entry whose key is not less than the range's bound."""
        cdef Place place = behind[0]
        cdef const uint64_t* at = self.ends.offsets + 2 * i
        cdef const Entry* entry
        cdef int state
        if self.ends.is_last:
            if place.leaf == NULL:
                last_place(tree, &place)
            else:
                go_back(&place)
        entry = entry_at(&place)
        if entry == NULL:
            return 0
        if self.ends.is_last:
            if compare(key_of(entry), entry.key_size, self.ends.data + at[0], at[1] - at[0]) < 0:
                return 0
        elif compare(key_of(entry), entry.key_size, self.ends.data + at[1], at[2] - at[1]) >= 0:
            return 0
        state = is_end_of(&self.ends, i, key_of(entry), entry.key_size)
        if state == 0:
            return 0
        if state == 2:
            put_end(&self.ends, i, key_of(entry), entry.key_size, copy)
        tier.found[i].place = <int32_t> (tier.entries.size // sizeof(void*))
        tier.found[i].changes = self.ends.items[i].changes
        return put_bytes(&tier.entries, &entry, sizeof(void*))

    def keys(self) -> KeyBatch:
        """End the search; return the distinct ends of the portion's ranges, ascending."""
        cdef KeyBatch found = KeyBatch.__new__(KeyBatch)
        with nogil:
            self._distinct(found)
        return found

    cdef int _distinct(self, KeyBatch found) except -1 nogil:
        cdef Py_ssize_t i, kept = 0
        cdef const End* end
        cdef const End* before = NULL
        cdef const uint8_t* key
        cdef size_t size
        for i in range(self.ends.count):
            end = &self.ends.items[i]
            self.places[i] = -1
            if end.size == 0 or end.is_open:
                continue
            if before == NULL or not self._is_same(before, end):
                kept += 1
            self.places[i] = <int32_t> (kept - 1)
            before = end
        found.take_rows(kept)
        for i in range(self.ends.count):
            if self.places[i] >= 0:
                found.offsets[self.places[i] + 1] = self.ends.items[i].size - STREAM_BYTES
        found.take_data()
        kept = 0
        for i in range(self.ends.count):
            if self.places[i] < kept:
                continue
            key = self.ends.keys.data + self.ends.items[i].key + STREAM_BYTES
            size = self.ends.items[i].size - STREAM_BYTES
            memcpy(found.data + found.offsets[kept] + STREAM_BYTES, key, size)
            found.hashes[kept] = xxh3(key, size)
            found.valid[kept] = 1
            found.order[kept] = <uint32_t> kept
            kept += 1
        found.n_valid = kept
        return 0

    cdef bint _is_same(self, const End* a, const End* b) noexcept nogil:
        return a.key == b.key or compare(
            self.ends.keys.data + a.key, a.size, self.ends.keys.data + b.key, b.size
        ) == 0

    cdef inline int32_t _found(self, const Tier* tier, Py_ssize_t i) noexcept nogil:
        """The place of what a tier has of the end of a range; -1: nothing."""
        if tier.found[i].changes != self.ends.items[i].changes:
            return -1
        return tier.found[i].place

    def give_run(self, Py_ssize_t run, Lookup lookup not None) -> None:
        """Note the hits of a run, as ``Lookup.search_run`` does; runs come oldest first."""
        cdef Tier* tier = &self.tiers[run]
        cdef RunHits* hits = &lookup.runs[lookup.run_count]
        cdef Hit* hit
        cdef Py_ssize_t i
        cdef int32_t place, next_place = 0
        if lookup.run_count >= lookup.run_room or run >= self.run_count:
            raise ValueError(f"more than {lookup.run_room} runs")
        lookup.run_count += 1
        if tier.hits.count == 0:
            return
        lookup._charge(
            <int64_t> tier.hits.count * <int64_t> (sizeof(Hit) + sizeof(void*))
            + (lookup.n + 1) * <int64_t> sizeof(int32_t)
        )
        hits.hits.items = <Hit*> malloc(tier.hits.count * sizeof(Hit))
        hits.files = <void**> malloc(tier.hits.count * sizeof(void*))
        hits.first = <int32_t*> malloc((lookup.n + 1) * sizeof(int32_t))
        if hits.hits.items == NULL or hits.files == NULL or hits.first == NULL:
            raise MemoryError(f"no memory for {tier.hits.count} hits")
        hits.hits.capacity = hits.file_room = tier.hits.count
        memset(hits.first, 0xFF, (lookup.n + 1) * sizeof(int32_t))
        for i in range(self.ends.count):
            if self.places[i] < next_place:
                continue
            next_place = self.places[i] + 1
            place = self._found(tier, i)
            if place < 0:
                continue
            hit = &hits.hits.items[hits.hits.count]
            hit[0] = tier.hits.items[place]
            hit.position = <uint32_t> self.places[i]
            hits.files[hits.hits.count] = tier.files[place]
            hits.first[hit.position] = <int32_t> hits.hits.count
            hits.hits.count += 1

    def give_memtable(self, Py_ssize_t number, Memtable memtable not None, Lookup lookup not None):
        """Note the entries of a memtable, as ``Lookup.search_memtable`` does; they come oldest
        first."""
        cdef Tier* tier = &self.tiers[self.run_count + number]
        cdef Entry** entries
        cdef Py_ssize_t i
        cdef int32_t place
        if tier.entries.size == 0:
            return
        entries = lookup._add_memtable(memtable)
        for i in range(self.ends.count):
            if self.places[i] < 0:
                continue
            place = self._found(tier, i)
            if place >= 0:
                entries[self.places[i]] = (<Entry**> tier.entries.data)[place]

    def give_files(self, Lookup lookup not None) -> None:
        """Have a lookup keep the files open in which its hits lie."""
        lookup.tables.extend(item for item in self.held if isinstance(item, Sst))

    def end(self) -> tuple:
        """End the portion. Return which ranges have an end, by rows of the bounds, the place of each
        among the keys, which ascends, and the ranges whose ends were left open. Three int64 arrays.
        """
        cdef Py_ssize_t i, found = 0, opened = 0, count = self.ends.count
        cdef size_t number
        rows = np.empty(count, np.int64)
        places = np.empty(count, np.int64)
        left = np.empty(count, np.int64)
        cdef int64_t[::1] row_view = rows, place_view = places, left_view = left
        for i in range(count):
            number = self.begun + i
            if self.ends.is_last:
                number = self.ranges.by_high[number]
            if self.places[i] >= 0:
                row_view[found] = self.ranges.rows[number]
                place_view[found] = self.places[i]
                found += 1
            elif self.ends.items[i].is_open:
                left_view[opened] = self.ranges.rows[number]
                opened += 1
        self.begun += count
        self._forget()
        self.held = []
        self.ends.count = 0
        self._pay()
        return rows[:found], places[:found], left[:opened]
