"""How often each row of a group was retracted: a hash table in bounded memory that stores no row.

A row is identified by 128 bits of SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
PRF", 2012) with a random secret per table. Rows of equal hash count as equal, and are not compared.
Without the secret no two colliding rows can be found or made. For 2^32 rows and 2^32 retractions,
any two collide by chance in one of 2^64 tables. The 64-bit checksums that protect blocks fail far
more often.

What does not fit at once is counted in parts: a part has the rows of some hashes, of all groups.
"""

cimport cython
import os

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.memory.budget cimport Budget
from lsmstate.cython_ext.memory.budget import COMPONENT_NAMES
from lsmstate.cython_ext.rows.row_codec cimport RowBatch

cdef extern from *:
    """
    static inline uint64_t lsm_turn(uint64_t word, int bits) {
        return word << bits | word >> (64 - bits);
    }

    static inline void lsm_sip_round(uint64_t v[4]) {
        v[0] += v[1]; v[2] += v[3];
        v[1] = lsm_turn(v[1], 13) ^ v[0]; v[3] = lsm_turn(v[3], 16) ^ v[2];
        v[0] = lsm_turn(v[0], 32);
        v[2] += v[1]; v[0] += v[3];
        v[1] = lsm_turn(v[1], 17) ^ v[2]; v[3] = lsm_turn(v[3], 21) ^ v[0];
        v[2] = lsm_turn(v[2], 32);
    }

    static inline void lsm_sip_word(uint64_t v[4], uint64_t word) {
        v[3] ^= word;
        lsm_sip_round(v); lsm_sip_round(v);
        v[0] ^= word;
    }

    static inline uint64_t lsm_sip_end(uint64_t v[4]) {
        int i;
        for (i = 0; i < 4; i++)
            lsm_sip_round(v);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
    }

    /* Of eight bytes of the group, and then the row. Words are little-endian, as all of our files. */
    static inline void lsm_sip_hash(const uint64_t secret[2], uint64_t group, const uint8_t* row,
                                    size_t size, uint64_t* low, uint64_t* high) {
        uint64_t v[4] = {
            secret[0] ^ 0x736f6d6570736575u, secret[1] ^ 0x646f72616e646f6du ^ 0xee,
            secret[0] ^ 0x6c7967656e657261u, secret[1] ^ 0x7465646279746573u,
        };
        uint64_t word = group, last = (uint64_t)(size + 8) << 56;
        lsm_sip_word(v, word);
        for (; size >= 8; size -= 8, row += 8) {
            memcpy(&word, row, 8);
            lsm_sip_word(v, word);
        }
        word = 0;
        if (size)
            memcpy(&word, row, size);
        lsm_sip_word(v, last | word);
        v[2] ^= 0xee;
        *low = lsm_sip_end(v);
        v[1] ^= 0xdd;
        *high = lsm_sip_end(v);
    }

    /* A number as far up below `bound` as the word is among all words. */
    static inline uint64_t lsm_place(uint64_t word, uint64_t bound) {
        return (uint64_t)((unsigned __int128)word * bound >> 64);
    }
    """
    void lsm_sip_hash(
        const uint64_t* secret, uint64_t group, const uint8_t* row, size_t size, uint64_t* low,
        uint64_t* high,
    ) noexcept nogil
    uint64_t lsm_place(uint64_t word, uint64_t bound) noexcept nogil

cdef enum:
    LEAST_SLOTS = 2048   # are there whatever the budget says, if so many are wanted


def row_hash(bytes secret not None, int64_t group, bytes row not None) -> bytes:
    """Return the hash of a row. For tests."""
    cdef uint64_t words[2]
    cdef uint64_t found[2]
    if len(secret) != sizeof(words):
        raise ValueError(f"a secret of {len(secret)} bytes instead of {sizeof(words)}")
    memcpy(words, <const char*> secret, sizeof(words))
    lsm_sip_hash(
        words, <uint64_t> group, <const uint8_t*> <const char*> row, len(row), &found[0], &found[1]
    )
    return (<const char*> found)[:sizeof(found)]


cdef inline size_t _slots_of(size_t rows) noexcept nogil:
    """Return the number of slots, of which at most three of four are used."""
    return rows + rows // 3 + 1


cdef inline size_t _rows_of(size_t slots) noexcept nogil:
    return slots * 3 // 4


@cython.final
@cython.no_gc  # __dealloc__ needs what it holds; it cannot be part of a cycle by itself
cdef class RowCounts:
    """A table of at most ``most_bytes``, charged to a component of the budget; smaller, down to 48
    KiB, if the budget has no more."""

    def __cinit__(self):
        self.slots = NULL
        self.room = 0

    def __init__(self, Budget budget not None, str component not None, size_t most_bytes):
        cdef bytes secret = os.urandom(sizeof(self.secret))
        memcpy(self.secret, <const char*> secret, sizeof(self.secret))
        self.budget = budget
        self.component = COMPONENT_NAMES.index(component)
        self.most_slots = max(<size_t> 4, most_bytes // sizeof(Slot))
        self.parts = 1

    def __dealloc__(self):
        if self.budget is not None:
            self.budget.release(self.component, <int64_t> (self.room * sizeof(Slot)))
        free(self.slots)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of this table."""
        return self.room * sizeof(Slot)

    @property
    def most_rows(self) -> int:
        """Distinct rows that fit into ``most_bytes``."""
        return _rows_of(self.most_slots)

    def begin(self, size_t expected, uint64_t part=0, uint64_t parts=1) -> int:
        """Clear the table, and count the rows of one part from now on; return for how many distinct
        rows there is room, if so many are expected."""
        self.start(expected, part, parts)
        return _rows_of(self.room)

    def add_rows(self, const int64_t[::1] groups, RowBatch rows not None) -> int:
        """Count rows, each in its group; return how many were counted: less than all if there is no
        room."""
        cdef Py_ssize_t i = 0
        if rows.n != groups.shape[0]:
            raise ValueError(f"{rows.n} rows of {groups.shape[0]} groups")
        with nogil:
            while i < rows.n and self.add(
                groups[i], rows.data + rows.offsets[i], rows.offsets[i + 1] - rows.offsets[i]
            ):
                i += 1
        return i

    def take_rows(
        self, const int64_t[::1] groups, RowBatch rows not None, Py_ssize_t start, Py_ssize_t end,
        uint8_t[::1] taken,
    ) -> None:
        """Write a 1 to ``taken`` for each of the rows from ``start`` to ``end`` that is counted
        here, and count it once less."""
        cdef Py_ssize_t i
        if not 0 <= start <= end <= rows.n or not rows.n == groups.shape[0] == taken.shape[0]:
            raise ValueError(f"rows {start} to {end} of {rows.n}, {groups.shape[0]} groups")
        with nogil:
            for i in range(start, end):
                if self.take(
                    groups[i], rows.data + rows.offsets[i], rows.offsets[i + 1] - rows.offsets[i]
                ):
                    taken[i] = 1

    cdef int start(self, size_t expected, uint64_t part, uint64_t parts) except -1 nogil:
        cdef size_t wanted = min(_slots_of(max(<size_t> 3, expected)), self.most_slots)
        self.part = part
        self.parts = parts
        self.used = 0
        if wanted <= self.room <= 4 * wanted + 64:
            memset(self.slots, 0, self.room * sizeof(Slot))
            return 0
        free(self.slots)
        self.slots = NULL
        self.budget.release(self.component, <int64_t> (self.room * sizeof(Slot)))
        self.room = 0
        while not self._resize(wanted, wanted <= LEAST_SLOTS):
            wanted = max(wanted // 2, <size_t> LEAST_SLOTS)
        return 0

    cdef int _resize(self, size_t room, bint forced) except -1 nogil:
        """Return 1 if there is room for more, 0 if the budget has none."""
        cdef Slot* before = self.slots
        cdef size_t i, slots = self.room
        cdef Slot* slot
        cdef Slot* grown
        if forced:
            self.budget.charge(self.component, <int64_t> (room * sizeof(Slot)))
        elif self.budget.try_charge(self.component, <int64_t> (room * sizeof(Slot))):
            return 0
        grown = <Slot*> calloc(room, sizeof(Slot))
        if grown == NULL:
            self.budget.release(self.component, <int64_t> (room * sizeof(Slot)))
            with gil:
                raise MemoryError(f"no memory to count {room} rows")
        self.slots = grown
        self.room = room
        for i in range(slots):
            if before[i].low | before[i].high:
                slot = self._find(before[i].low, before[i].high)
                slot[0] = before[i]
        free(before)
        self.budget.release(self.component, <int64_t> (slots * sizeof(Slot)))
        return 1

    cdef Slot* _find(self, uint64_t low, uint64_t high) noexcept nogil:
        """Return the slot of a hash, or the one that it would get: a free one always exists."""
        cdef size_t place = <size_t> lsm_place(high, self.room)
        cdef Slot* slot = &self.slots[place]
        while slot.low | slot.high and (slot.low != low or slot.high != high):
            place = place + 1 if place + 1 < self.room else 0
            slot = &self.slots[place]
        return slot

    cdef int add(self, int64_t group, const uint8_t* row, size_t size) except -1 nogil:
        cdef uint64_t low, high
        cdef Slot* slot
        lsm_sip_hash(self.secret, <uint64_t> group, row, size, &low, &high)
        if lsm_place(low, self.parts) != self.part:
            return 1
        low |= low | high == 0  # zero would mean a free slot
        slot = self._find(low, high)
        if slot.low | slot.high == 0:
            if self.used >= _rows_of(self.room):
                if self.room >= self.most_slots or not self._resize(
                    min(2 * self.room, self.most_slots), False
                ):
                    return 0
                slot = self._find(low, high)
            slot.low = low
            slot.high = high
            self.used += 1
        slot.count += 1
        return 1

    cdef bint take(self, int64_t group, const uint8_t* row, size_t size) noexcept nogil:
        cdef uint64_t low, high
        cdef Slot* slot
        if self.used == 0:
            return False
        lsm_sip_hash(self.secret, <uint64_t> group, row, size, &low, &high)
        low |= low | high == 0
        slot = self._find(low, high)
        if slot.count == 0:
            return False
        slot.count -= 1
        return True
