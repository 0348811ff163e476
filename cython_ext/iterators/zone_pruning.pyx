"""ZonePruner: leaves row blocks out of a read of ranges whose zones no range wants.

The keys of a portion ascend, so ranges begin and end as they go by. A row block is needed for a key
if a range that holds the key wants a value in the block's zones. The rows of other blocks are taken
out of the lookup, which then neither counts nor reads them.
"""

cimport cython
import numpy as np

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from lsmstate.cython_ext.entries.entry_source cimport FLAG_RESET
from lsmstate.cython_ext.iterators.key_lookup cimport Lookup, RunHits
from lsmstate.cython_ext.keys.encoded_ranges cimport EncodedRanges, is_below
from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.memory.budget cimport PROBE, Budget
from lsmstate.cython_ext.memory.read_budget cimport take_memory
from lsmstate.cython_ext.sstable.block cimport BLOCK_KEYS
from lsmstate.cython_ext.sstable.block_cache cimport CachedBlock
from lsmstate.cython_ext.sstable.key_block cimport (
    KeyBlock, Zone, parse_key_block, row_block_place, zone_at, zone_column, zone_rows,
)
from lsmstate.cython_ext.sstable.sst_reader cimport USE_PROBE, Sst
from lsmstate.cython_ext.sstable.sst_walker cimport Hit

cdef uint32_t NOWHERE = 0xFFFFFFFF

cdef enum:
    RANGE_BYTES = 8            # of each range: its place, and one among those that hold a key
    HIT_BYTES = sizeof(Hit) + sizeof(void*)


cdef struct Bounds:            # of a column, by row of the bounds
    uint32_t column
    const uint64_t* least
    const uint64_t* greatest


cdef struct Judged:            # the row block of a run that was asked about last
    bint is_there
    uint64_t uid               # of its file, which may be closed by now
    uint64_t key_block
    uint32_t index
    bint is_wanted             # by `range`
    bint is_needed             # for some key so far
    uint32_t range
    Py_ssize_t asked           # ranges, in the order of lower bounds, that do not want it


cdef struct Cursor:            # a run's current key block
    void* file
    uint64_t uid
    CachedBlock* block
    KeyBlock keys
    uint32_t* columns          # where it has those that are bounded, or NOWHERE
    bint is_zoned              # it has one of them


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class ZonePruner:
    """Goes along with a RangeWalk, portion by portion."""

    cdef EncodedRanges ranges
    cdef Budget budget
    cdef list kept             # arrays that `bounds` point into
    cdef Bounds* bounds
    cdef uint32_t bound_count
    cdef Py_ssize_t begun      # so many ranges, in the order of lower bounds
    cdef Py_ssize_t ended      # so many, in the order of upper bounds
    cdef uint32_t* holding     # ranges that hold the current key
    cdef Py_ssize_t holding_count
    cdef uint32_t* places      # of each range in `holding`, or NOWHERE
    cdef Judged* judged        # per run
    cdef Cursor* cursors       # per run
    cdef Py_ssize_t run_count
    cdef int64_t spared
    cdef int64_t charged

    def __init__(self, EncodedRanges ranges not None, Budget budget not None):
        cdef const uint64_t[::1] least, greatest
        cdef size_t count = ranges.count
        self.ranges = ranges
        self.budget = budget
        self.kept = []
        take_memory(budget, <int64_t> count * RANGE_BYTES)
        self.charged = <int64_t> count * RANGE_BYTES
        self.holding = <uint32_t*> malloc((count + 1) * sizeof(uint32_t))
        self.places = <uint32_t*> malloc((count + 1) * sizeof(uint32_t))
        self.bounds = <Bounds*> calloc(len(ranges.zones) + 1, sizeof(Bounds))
        if not (self.holding and self.places and self.bounds):
            raise MemoryError(f"no memory for {count} ranges")
        memset(self.places, 0xFF, (count + 1) * sizeof(uint32_t))
        if count == 0:
            return
        for column, low, high in ranges.zones:
            least = np.ascontiguousarray(low, np.uint64)
            greatest = np.ascontiguousarray(high, np.uint64)
            self.kept += (least, greatest)
            self.bounds[self.bound_count].column = column
            self.bounds[self.bound_count].least = &least[0]
            self.bounds[self.bound_count].greatest = &greatest[0]
            self.bound_count += 1

    def __dealloc__(self):
        self._leave_blocks()
        free(self.holding)
        free(self.places)
        free(self.bounds)
        free(self.judged)
        if self.budget is not None:
            self.budget.release(PROBE, self.charged)

    cdef void _leave_blocks(self) noexcept:
        cdef Py_ssize_t r
        if self.cursors == NULL:
            return
        for r in range(self.run_count):
            if self.cursors[r].block != NULL:
                (<Sst> self.cursors[r].file).cache.unpin(self.cursors[r].block)
            free(self.cursors[r].columns)
        free(self.cursors)
        self.cursors = NULL

    def prune(self, Lookup lookup not None, KeyBatch keys not None, bint is_last) -> int:
        """Take the rows that no range wants out of the lookup of a portion's keys; return how many
        row blocks are not needed. Portions come one after another, from the same runs."""
        cdef Py_ssize_t r
        cdef int64_t before = self.spared
        cdef RunHits* found
        if self.judged == NULL:
            self.run_count = lookup.run_count
            self.judged = <Judged*> calloc(self.run_count + 1, sizeof(Judged))
        if self.run_count != lookup.run_count:
            raise ValueError(f"{lookup.run_count} runs, and {self.run_count} before")
        self.cursors = <Cursor*> calloc(self.run_count + 1, sizeof(Cursor))
        found = <RunHits*> calloc(self.run_count + 1, sizeof(RunHits))
        try:
            if self.judged == NULL or self.cursors == NULL or found == NULL:
                raise MemoryError(f"no memory to prune {self.run_count} runs")
            for r in range(self.run_count):
                self.cursors[r].columns = <uint32_t*> malloc(
                    (self.bound_count + 1) * sizeof(uint32_t)
                )
                if self.cursors[r].columns == NULL:
                    raise MemoryError(f"no memory to prune {self.run_count} runs")
                if lookup.runs[r].first != NULL:
                    _make_room(&found[r], lookup, max(<size_t> 1, lookup.runs[r].hits.count))
            with nogil:
                self._prune_keys(lookup, keys, found)
            for r in range(self.run_count):
                if lookup.runs[r].first != NULL:
                    lookup._charge(-<int64_t> lookup.runs[r].file_room * HIT_BYTES)
                    lookup.runs[r].hits, found[r].hits = found[r].hits, lookup.runs[r].hits
                    lookup.runs[r].files, found[r].files = found[r].files, lookup.runs[r].files
                    lookup.runs[r].file_room = found[r].file_room
        finally:
            if found != NULL:
                for r in range(self.run_count):
                    free(found[r].hits.items)
                    free(found[r].files)
            free(found)
            self._leave_blocks()
        if is_last:
            for r in range(self.run_count):
                self._count(&self.judged[r])
        return self.spared - before

    cdef int _prune_keys(self, Lookup lookup, KeyBatch keys, RunHits* found) except -1 nogil:
        cdef Py_ssize_t place, r
        cdef RunHits* run
        cdef int32_t first
        cdef size_t h, before
        for place in range(keys.n):
            self._sweep(self.ranges, keys, place)
            for r in range(self.run_count):
                run = &lookup.runs[r]
                if run.first == NULL or run.first[place] < 0:
                    continue
                h = run.first[place]
                before = found[r].hits.count
                while h < run.hits.count and run.hits.items[h].position == place:
                    self._prune_hit(lookup, r, &run.hits.items[h], run.files[h], &found[r])
                    h += 1
                run.first[place] = <int32_t> before if found[r].hits.count > before else -1
        return 0

    cdef void _sweep(self, EncodedRanges ranges, KeyBatch keys, size_t place) noexcept nogil:
        """Begin and end ranges, so that those that hold the key are known."""
        cdef uint32_t k, last
        while self.begun < ranges.count and not is_below(
            keys, place, ranges, 2 * <size_t> self.begun
        ):
            self.places[self.begun] = <uint32_t> self.holding_count
            self.holding[self.holding_count] = <uint32_t> self.begun
            self.holding_count += 1
            self.begun += 1
        while self.ended < ranges.count:
            k = ranges.by_high[self.ended]
            if is_below(keys, place, ranges, 2 * <size_t> k + 1):
                return
            self.ended += 1
            self.holding_count -= 1
            last = self.holding[self.holding_count]
            self.holding[self.places[k]] = last
            self.places[last] = self.places[k]
            self.places[k] = NOWHERE

    cdef int _prune_hit(
        self, Lookup lookup, Py_ssize_t r, const Hit* hit, void* file, RunHits* found
    ) except -1 nogil:
        """Take over what is needed of a hit: none or several stretches of its row blocks."""
        cdef Cursor* cursor = &self.cursors[r]
        cdef uint32_t index = hit.block_index, first = hit.row_index, rows
        cdef uint64_t left = hit.rows
        cdef size_t before = found.hits.count
        cdef Hit part
        part.rows = 0
        if left == 0:
            return _take(found, lookup, hit, file)
        self._enter(cursor, hit, file)
        if not cursor.is_zoned:
            return _take(found, lookup, hit, file)
        while left:
            if index >= cursor.keys.row_blocks:
                (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
            rows = zone_rows(&cursor.keys, index)
            if rows > first:
                rows = <uint32_t> min(<uint64_t> (rows - first), left)
                if self._needs(r, index):
                    if part.rows == 0:
                        part = hit[0]
                        part.rows = 0
                        part.block_index = index
                        part.row_index = first
                        if row_block_place(
                            &cursor.keys, index, &part.row_block, &part.row_block_size
                        ):
                            (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
                    part.rows += rows
                elif part.rows:
                    self._take_part(lookup, hit, &part, file, found)
                left -= rows
            index += 1
            first = 0
        if part.rows:
            self._take_part(lookup, hit, &part, file, found)
        if found.hits.count == before and hit.flags & FLAG_RESET:
            part = hit[0]
            part.rows = part.row_bytes = 0
            _take(found, lookup, &part, file)
        return 0

    cdef int _take_part(
        self, Lookup lookup, const Hit* hit, Hit* part, void* file, RunHits* found
    ) except -1 nogil:
        """Take a part of a hit, whose rows are said to be of average size."""
        part.row_bytes = <uint64_t> (<double> hit.row_bytes * part.rows / hit.rows)
        if part.rows == hit.rows:
            part.row_bytes = hit.row_bytes
        _take(found, lookup, part, file)
        part.rows = 0
        return 0

    cdef int _enter(self, Cursor* cursor, const Hit* hit, void* file) except -1 nogil:
        """Have the cursor stand in the hit's key block, which the walk left in the cache."""
        cdef uint32_t c, z
        if cursor.block != NULL:
            if cursor.file == file and cursor.block.offset == hit.key_block:
                return 0
            (<Sst> cursor.file).cache.unpin(cursor.block)
            cursor.block = NULL
        cursor.file = file
        cursor.uid = (<Sst> file).uid
        cursor.block = (<Sst> file).load(
            hit.key_block, hit.key_block_size, BLOCK_KEYS, USE_PROBE
        )
        if parse_key_block(cursor.block.data, cursor.block.size, &cursor.keys):
            (<Sst> file).damaged(hit.key_block, BLOCK_KEYS)
        cursor.is_zoned = False
        for c in range(self.bound_count):
            cursor.columns[c] = NOWHERE
            for z in range(cursor.keys.zone_columns):
                if zone_column(&cursor.keys, z) == self.bounds[c].column:
                    cursor.columns[c] = z
                    cursor.is_zoned = True
        return 0

    cdef bint _needs(self, Py_ssize_t r, uint32_t index) noexcept nogil:
        """Test whether a range that holds the current key wants a row block of the key block."""
        cdef Judged* judged = &self.judged[r]
        cdef Cursor* cursor = &self.cursors[r]
        cdef Py_ssize_t i
        if (
            not judged.is_there or judged.uid != cursor.uid
            or judged.key_block != cursor.block.offset or judged.index != index
        ):
            self._count(judged)
            judged.is_there = True
            judged.uid = cursor.uid
            judged.key_block = cursor.block.offset
            judged.index = index
            judged.is_wanted = judged.is_needed = False
            judged.asked = 0
        if judged.is_wanted and self.places[judged.range] == NOWHERE:
            judged.is_wanted = False  # that range has ended, and others may want it
            judged.asked = 0
        if not judged.is_wanted and judged.asked < self.begun:
            if judged.asked == 0:
                for i in range(self.holding_count):
                    if self._wants(cursor, index, self.holding[i]):
                        judged.range = self.holding[i]
                        judged.is_wanted = True
                        break
            else:  # only of ranges that have begun since
                for i in range(judged.asked, self.begun):
                    if self.places[i] != NOWHERE and self._wants(cursor, index, <uint32_t> i):
                        judged.range = <uint32_t> i
                        judged.is_wanted = True
                        break
            judged.asked = self.begun
        judged.is_needed = judged.is_needed or judged.is_wanted
        return judged.is_wanted

    cdef bint _wants(self, Cursor* cursor, uint32_t index, uint32_t k) noexcept nogil:
        """Test whether a range wants values that the zones of a row block hold."""
        cdef uint32_t row = self.ranges.rows[k], c
        cdef Zone zone
        for c in range(self.bound_count):
            if cursor.columns[c] != NOWHERE:
                zone = zone_at(&cursor.keys, index, cursor.columns[c])
                if (
                    zone.least > self.bounds[c].greatest[row]
                    or zone.greatest < self.bounds[c].least[row]
                ):
                    return False
        return True

    cdef void _count(self, Judged* judged) noexcept nogil:
        """Count the block that was judged, if there is one, and no key needed it."""
        if judged.is_there and not judged.is_needed:
            self.spared += 1
        judged.is_there = False


cdef int _make_room(RunHits* run, Lookup lookup, size_t capacity) except -1:
    """Have room for so many hits, which are charged to the lookup."""
    cdef void* room
    lookup._charge(<int64_t> (capacity - run.file_room) * HIT_BYTES)
    room = realloc(run.hits.items, capacity * sizeof(Hit))
    if room == NULL:
        raise MemoryError(f"no memory for {capacity} hits")
    run.hits.items = <Hit*> room
    room = realloc(run.files, capacity * sizeof(void*))
    if room == NULL:
        raise MemoryError(f"no memory for {capacity} hits")
    run.files = <void**> room
    run.hits.capacity = run.file_room = capacity
    return 0


cdef int _take(RunHits* run, Lookup lookup, const Hit* hit, void* file) except -1 nogil:
    if run.hits.count == run.hits.capacity:
        with gil:
            _make_room(run, lookup, run.hits.capacity + (run.hits.capacity >> 1) + 1)
    run.hits.items[run.hits.count] = hit[0]
    run.files[run.hits.count] = file
    run.hits.count += 1
    return 0
