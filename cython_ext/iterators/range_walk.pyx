"""RangeWalk: the keys of a stream that lie in ranges, and where their rows lie, in portions.

Every run and every memtable is walked once over the ranges, which were joined to disjoint segments.
Their keys are merged by a stable sort, and become a Lookup, as if the distinct ones had been looked
up. A portion is bounded: the first tier that has enough keys ends it for all tiers.
"""

cimport cython

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport (
    STREAM_BYTES, Buffer, compare, put_bytes, release, reserve,
)
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.base.prefetch cimport prefetch_line
from lsmstate.cython_ext.entries.key_ranges cimport KeyRanges
from lsmstate.cython_ext.iterators.key_lookup cimport Lookup, RunHits
from lsmstate.cython_ext.keys.encoded_ranges cimport EncodedRanges
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.keys.key_sort cimport sort_keys
from lsmstate.cython_ext.memory.budget cimport PROBE, Budget
from lsmstate.cython_ext.memory.read_budget cimport take_memory
from lsmstate.cython_ext.memtable.btree cimport (
    GROUP, Entry, Page, Place, Search, Tree, entry_at, find_group, find_place, go_on, key_of,
)
from lsmstate.cython_ext.memtable.memtable cimport Memtable, tree_of
from lsmstate.cython_ext.rows.row_codec cimport RowCodec
from lsmstate.cython_ext.sstable.sst_walker cimport Hit, HitList
from lsmstate.cython_ext.sstable.sst_ranges cimport (
    Segments, Taken, is_enough, segment_behind, take_key, walk_sst,
)
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef enum:
    # A portion of keys with all that is known of them takes about a sixteenth of the cap.
    KEY_BYTES = 256
    MOST_KEYS = 1 << 14
    LEAST_KEYS = 256
    LONG_KEY_BYTES = 64        # a portion of longer keys has fewer of them
    SWEEP_BYTES = 12           # of a range, in the RangeSweep of whoever reads the portions


cdef struct Tier:              # what the walk of a run or a memtable found
    size_t first               # its keys in `taken`
    size_t count
    HitList hits               # of a run
    void** files               # of each hit: the Sst it was found in
    Entry** entries            # of a memtable, in step with the keys


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class RangeWalk:
    """Walks the tiers of a store, portion by portion."""

    cdef EncodedRanges ranges
    cdef Budget budget
    cdef RowCodec codec
    cdef uint32_t stream
    cdef Buffer bounds            # of the segments, with the stream's number
    cdef Buffer offsets
    cdef Segments segments
    cdef Py_ssize_t reached       # segments before have no more keys
    cdef Buffer least             # the portion's keys are not less
    cdef Taken taken
    cdef Tier* tiers              # by age: runs, then memtables
    cdef Py_ssize_t tier_count
    cdef Py_ssize_t run_count
    cdef list held                # keeps files and memtables
    cdef uint32_t* places         # per key in `taken`: its distinct key in the portion; -1: none
    cdef readonly int64_t most_keys  #: of a portion, from all tiers together
    cdef int64_t charged

    def __init__(
        self, EncodedRanges ranges not None, uint32_t stream, RowCodec codec not None,
        Budget budget not None,
    ):
        cdef int64_t most = budget.limit // 16
        self.ranges = ranges
        self.stream = stream
        self.codec = codec
        self.budget = budget
        self.most_keys = min(<int64_t> MOST_KEYS, max(<int64_t> LEAST_KEYS, most // KEY_BYTES))
        self._put_segments()
        self._pay()

    def __dealloc__(self):
        self._forget()
        release(&self.bounds)
        release(&self.offsets)
        release(&self.least)
        release(&self.taken.keys)
        release(&self.taken.ends)
        release(&self.taken.bound)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    cdef void _forget(self) noexcept:
        """Forget what the portion before found."""
        cdef Py_ssize_t t
        for t in range(self.tier_count):
            free(self.tiers[t].hits.items)
            free(self.tiers[t].files)
            free(self.tiers[t].entries)
        free(self.tiers)
        free(self.places)
        self.tiers = NULL
        self.places = NULL
        self.tier_count = 0

    cdef int _put_segments(self) except -1:
        cdef EncodedRanges ranges = self.ranges
        cdef Py_ssize_t s
        cdef int side
        cdef size_t bound, size
        cdef uint8_t* at
        cdef uint32_t number
        cdef uint64_t* offsets
        reserve(&self.offsets, (2 * ranges.segment_count + 1) * sizeof(uint64_t))
        offsets = <uint64_t*> self.offsets.data
        offsets[0] = 0
        for s in range(ranges.segment_count):
            for side in range(2):
                bound = 2 * <size_t> ranges.segments[2 * s + side] + side
                size = ranges.offsets[bound + 1] - ranges.offsets[bound]
                put_bytes(&self.bounds, ranges.data + ranges.offsets[bound], size)
                at = self.bounds.data + self.bounds.size - size
                number = self.stream + at[1]
                at[0] = <uint8_t> (number >> 8)
                at[1] = <uint8_t> (number & 0xFF)
                offsets[2 * s + side + 1] = self.bounds.size
        reserve(&self.bounds, 8)
        self.segments.data = self.bounds.data
        self.segments.offsets = offsets
        self.segments.count = ranges.segment_count
        return 0

    cdef int _pay(self) except -1:
        """Charge the growth of what is held."""
        cdef int64_t held = <int64_t> (
            self.bounds.capacity + self.offsets.capacity + self.least.capacity
            + self.taken.keys.capacity + self.taken.ends.capacity + self.taken.bound.capacity
        ) + self.ranges.nbytes + self.ranges.count * SWEEP_BYTES
        cdef Py_ssize_t t
        for t in range(self.tier_count):
            held += <int64_t> (self.tiers[t].hits.capacity * (sizeof(Hit) + sizeof(void*)))
            if self.tiers[t].entries != NULL:
                held += <int64_t> (self.tiers[t].count * sizeof(void*))
        take_memory(self.budget, held - self.charged)
        self.charged = held
        return 0

    def key_range(self) -> tuple[bytes, bytes] | None:
        """Return the least bound and the greatest one, behind all keys; None: no key is left."""
        cdef const uint64_t* at
        if self.reached >= self.segments.count:
            return None
        at = self.segments.offsets + 2 * self.reached
        low = <bytes> self.segments.data[at[0]:at[1]]
        least = <bytes> self.least.data[:self.least.size] if self.least.size else b""
        at = self.segments.offsets + 2 * self.segments.count - 1
        return max(low, least), <bytes> self.segments.data[at[0]:at[1]]

    def begin(self, Py_ssize_t runs, Py_ssize_t memtables) -> None:
        """Begin a portion, for which so many runs and memtables are walked, in any order."""
        self._forget()
        self.tiers = <Tier*> calloc(runs + memtables + 1, sizeof(Tier))
        if self.tiers == NULL:
            raise MemoryError(f"no memory to walk {runs + memtables} tiers")
        self.tier_count = runs + memtables
        self.run_count = runs
        self.held = []
        self.taken.keys.size = self.taken.ends.size = 0
        self.taken.has_bound = False

    cdef int _begin_tier(self, Py_ssize_t tier, Py_ssize_t most_keys) except -1:
        self.taken.most_keys = max(<Py_ssize_t> 1, most_keys)
        self.taken.most_bytes = self.taken.most_keys * LONG_KEY_BYTES
        if not 0 <= tier < self.tier_count or self.tiers[tier].count:
            raise ValueError(f"tier {tier} of {self.tier_count}")
        self.tiers[tier].first = self.taken.begun = self.taken.ends.size // 8
        self.taken.begun_bytes = self.taken.keys.size
        self.taken.is_full = False
        memset(&self.taken.hits, 0, sizeof(HitList))
        return 0

    def walk_run(self, Py_ssize_t run, list files not None, Py_ssize_t most_keys) -> None:
        """Walk the files of a run, in key order, for so many keys at most."""
        cdef Tier* tier
        cdef Sst sst
        cdef Py_ssize_t place = self.reached
        cdef size_t before, i
        cdef void* room
        self._begin_tier(run, most_keys)
        tier = &self.tiers[run]
        try:
            for sst in files:
                before = self.taken.hits.count
                with nogil:
                    place = walk_sst(sst, &self.segments, place, &self.least, &self.taken)
                if self.taken.hits.count > before:
                    self.held.append(sst)
                    room = realloc(tier.files, self.taken.hits.capacity * sizeof(void*))
                    if room == NULL:
                        raise MemoryError(f"no memory for {self.taken.hits.capacity} hits")
                    tier.files = <void**> room
                    for i in range(before, self.taken.hits.count):
                        tier.files[i] = <void*> sst
                if self.taken.is_full:
                    break
        finally:
            tier.hits = self.taken.hits
            memset(&self.taken.hits, 0, sizeof(HitList))
        tier.count = self.taken.ends.size // 8 - tier.first
        self._pay()

    def walk_memtable(
        self, Py_ssize_t number, Memtable memtable not None, Py_ssize_t most_keys
    ) -> None:
        """Walk a memtable, for so many keys at most."""
        cdef Tier* tier
        cdef Tree* tree = tree_of(memtable, self.stream)
        cdef Buffer entries
        self._begin_tier(self.run_count + number, most_keys)
        if tree == NULL:
            return
        tier = &self.tiers[self.run_count + number]
        memset(&entries, 0, sizeof(Buffer))
        try:
            with nogil:
                if memtable.keys < 4 * <size_t> self.segments.count:
                    self._walk_keys(tree, &entries)
                else:
                    self._walk_segments(tree, &entries)
        except BaseException:
            release(&entries)
            raise
        tier.entries = <Entry**> entries.data
        tier.count = entries.size // sizeof(void*)
        self.held.append(memtable)
        self._pay()

    cdef int _take_entries(
        self, const Place* found, const uint8_t* end, size_t end_size, Buffer* entries
    ) except -1 nogil:
        """Take the entries from a place on whose keys are less than the end."""
        cdef Place place = found[0]
        cdef Entry* entry = entry_at(&place)
        while entry != NULL and compare(key_of(entry), entry.key_size, end, end_size) < 0:
            if is_enough(&self.taken, key_of(entry), entry.key_size):
                return 0
            take_key(&self.taken, key_of(entry), entry.key_size)
            put_bytes(entries, &entry, sizeof(void*))
            go_on(&place)
            entry = entry_at(&place)
        return 0

    cdef void _low(self, Py_ssize_t place, const uint8_t** key, size_t* size) noexcept nogil:
        """The lower bound of a segment, as far as the portion goes."""
        cdef const uint64_t* at = self.segments.offsets + 2 * place
        key[0] = self.segments.data + at[0]
        size[0] = at[1] - at[0]
        if place == self.reached and compare(key[0], size[0], self.least.data, self.least.size) < 0:
            key[0] = self.least.data
            size[0] = self.least.size

    cdef int _walk_segments(self, const Tree* tree, Buffer* entries) except -1 nogil:
        """Look the segments up in groups: most of them are far apart."""
        cdef Search searches[GROUP]
        cdef Place places[GROUP]
        cdef Page* finger = NULL
        cdef Py_ssize_t s = self.reached
        cdef int k, count
        cdef const uint64_t* at
        while s < self.segments.count and not self.taken.is_full:
            count = <int> min(<Py_ssize_t> GROUP, self.segments.count - s)
            for k in range(count):
                self._low(s + k, &searches[k].key, &searches[k].size)
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
                at = self.segments.offsets + 2 * (s + k) + 1
                self._take_entries(&places[k], self.segments.data + at[0], at[1] - at[0], entries)
                if self.taken.is_full:
                    break
            s += count
        return 0

    cdef int _walk_keys(self, const Tree* tree, Buffer* entries) except -1 nogil:
        """Look the keys up among the segments: most of these hold none."""
        cdef Place place
        cdef Entry* entry
        cdef Py_ssize_t s = self.reached
        cdef const uint64_t* at
        cdef const uint8_t* low
        cdef size_t size
        place.leaf = NULL
        while s < self.segments.count:
            self._low(s, &low, &size)
            entry = entry_at(&place)
            if entry == NULL or compare(key_of(entry), entry.key_size, low, size) < 0:
                find_place(tree, low, size, &place)
                entry = entry_at(&place)
            at = self.segments.offsets + 2 * s + 1
            while entry != NULL and compare(
                key_of(entry), entry.key_size, self.segments.data + at[0], at[1] - at[0]
            ) < 0:
                if is_enough(&self.taken, key_of(entry), entry.key_size):
                    return 0
                take_key(&self.taken, key_of(entry), entry.key_size)
                put_bytes(entries, &entry, sizeof(void*))
                go_on(&place)
                entry = entry_at(&place)
            if entry == NULL:
                return 0
            s = segment_behind(&self.segments, s + 1, key_of(entry), entry.key_size)
        return 0

    def keys(self) -> KeyBatch:
        """End the walk of all tiers; return the distinct keys of the portion, ascending."""
        cdef KeyBatch found = KeyBatch.__new__(KeyBatch)
        with nogil:
            self._distinct(found)
        return found

    cdef int _distinct(self, KeyBatch found) except -1 nogil:
        cdef size_t n = self.taken.ends.size // 8, i, at, kept = 0, total = 0
        cdef Py_ssize_t t
        cdef uint64_t* offsets = <uint64_t*> malloc((n + 1) * sizeof(uint64_t))
        cdef uint32_t* order = <uint32_t*> malloc((n + 1) * sizeof(uint32_t))
        cdef const uint8_t* key
        self.places = <uint32_t*> malloc((n + 1) * sizeof(uint32_t))
        if offsets == NULL or order == NULL or self.places == NULL:
            free(offsets)
            free(order)
            with gil:
                raise MemoryError(f"no memory to merge {n} keys")
        try:
            offsets[0] = 0
            if n:
                memcpy(offsets + 1, self.taken.ends.data, n * sizeof(uint64_t))
            at = 0
            for t in range(self.tier_count):  # by age, in which equal keys stay
                for i in range(self.tiers[t].first, self.tiers[t].first + self.tiers[t].count):
                    order[at] = <uint32_t> i
                    at += 1
            if sort_keys(self.taken.keys.data, offsets, STREAM_BYTES, order, n):
                with gil:
                    raise MemoryError(f"no memory to sort {n} keys")
            memset(self.places, 0xFF, n * sizeof(uint32_t))
            for at in range(n):
                i = order[at]
                key = self.taken.keys.data + offsets[i]
                if self.taken.has_bound and compare(
                    key, offsets[i + 1] - offsets[i], self.taken.bound.data, self.taken.bound.size
                ) > 0:
                    break  # a tier that was walked before the bound was known
                if at == 0 or compare(
                    key, offsets[i + 1] - offsets[i], self.taken.keys.data + offsets[order[at - 1]],
                    offsets[order[at - 1] + 1] - offsets[order[at - 1]],
                ):
                    kept += 1
                self.places[i] = <uint32_t> (kept - 1)
            found.take_rows(kept)
            for at in range(n):
                i = order[at]
                if self.places[i] == <uint32_t> -1:
                    break
                found.offsets[self.places[i] + 1] = offsets[i + 1] - offsets[i] - STREAM_BYTES
            found.take_data()
            kept = 0
            for at in range(n):
                i = order[at]
                if self.places[i] == <uint32_t> -1:
                    break
                if self.places[i] < kept:
                    continue
                total = offsets[i + 1] - offsets[i] - STREAM_BYTES
                key = self.taken.keys.data + offsets[i] + STREAM_BYTES
                memcpy(found.data + found.offsets[kept] + STREAM_BYTES, key, total)
                found.hashes[kept] = xxh3(key, total)
                found.valid[kept] = 1
                found.order[kept] = <uint32_t> kept
                kept += 1
            found.n_valid = <Py_ssize_t> kept
        finally:
            free(offsets)
            free(order)
        return 0

    def give_run(self, Py_ssize_t run, Lookup lookup not None) -> None:
        """Note the hits of a run, as ``Lookup.search_run`` does; runs come oldest first."""
        cdef Tier* tier = &self.tiers[run]
        cdef RunHits* hits = &lookup.runs[lookup.run_count]
        cdef Hit* hit
        cdef size_t i
        cdef uint32_t place
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
        for i in range(tier.hits.count):
            place = self.places[tier.hits.items[i].position]
            if place == <uint32_t> -1:
                break
            hit = &hits.hits.items[i]
            hit[0] = tier.hits.items[i]
            hit.position = place
            hits.files[i] = tier.files[i]
            if hits.first[place] < 0:
                hits.first[place] = <int32_t> i
            hits.hits.count += 1

    def give_memtable(self, Py_ssize_t number, Memtable memtable not None, Lookup lookup not None):
        """Note the entries of a memtable, as ``Lookup.search_memtable`` does; they come oldest
        first."""
        cdef Tier* tier = &self.tiers[self.run_count + number]
        cdef Entry** entries
        cdef size_t i
        cdef uint32_t place
        if tier.count == 0:
            return
        entries = lookup._add_memtable(memtable)
        for i in range(tier.count):
            place = self.places[tier.first + i]
            if place == <uint32_t> -1:
                break
            entries[place] = tier.entries[i]

    def give_files(self, Lookup lookup not None) -> None:
        """Have a lookup keep the files open in which its hits lie."""
        lookup.tables.extend(item for item in self.held if isinstance(item, Sst))

    def end(self) -> bool:
        """End the portion; return whether it was the last one."""
        cdef bint is_last = not self.taken.has_bound
        self._forget()
        self.held = []
        if is_last:
            self.reached = self.segments.count
        else:  # behind the last key
            self.least.size = 0
            put_bytes(&self.least, self.taken.bound.data, self.taken.bound.size)
            put_bytes(&self.least, <const uint8_t*> b"\0", 1)
            self.reached = segment_behind(
                &self.segments, self.reached, self.taken.bound.data, self.taken.bound.size
            )
        self._pay()
        return is_last
