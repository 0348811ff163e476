"""Keys that texts at most some edits apart share.

- A short text has a key for each way to leave out at most as many characters as there are edits.
- A longer one is cut into one segment more than there are edits. A segment is left whole, and stands
  in the other text where the edits before it may have moved it.

Texts are given as characters, 32 bits each, and where each text ends. A key is a hash: two texts may
share one by chance, and are then compared in vain.
"""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef enum:
    FIRST_ROOM = 1024

cdef uint64_t GOLDEN = 0x9E3779B97F4A7C15ULL
#: What a key of deletions begins with; one of segments begins with a length and a number.
cdef uint64_t DELETIONS = 0xD1B54A32D192ED03ULL


cdef inline uint64_t mixed(uint64_t h) noexcept nogil:
    h = (h ^ (h >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9ULL
    h = (h ^ (h >> 27)) * <uint64_t> 0x94D049BB133111EBULL
    return h ^ (h >> 31)


cdef inline uint64_t hashed(uint64_t h, const uint32_t* text, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at
    for at in range(count):
        h = (((h << 5) | (h >> 59)) ^ text[at]) * GOLDEN
    return h


@cython.final
cdef class _Found:
    """Keys, and beside each its text."""

    cdef uint64_t* keys
    cdef int64_t* owners
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef Py_ssize_t own  # where the keys of the text at hand begin

    def __cinit__(self):
        self.room = FIRST_ROOM
        self.keys = <uint64_t*> malloc(FIRST_ROOM * sizeof(uint64_t))
        self.owners = <int64_t*> malloc(FIRST_ROOM * sizeof(int64_t))
        if self.keys == NULL or self.owners == NULL:
            raise MemoryError("no memory for keys of texts")

    def __dealloc__(self):
        free(self.keys)
        free(self.owners)

    cdef int add(self, int64_t owner, uint64_t key) except -1 nogil:
        """Add a key, unless the text at hand has it."""
        cdef Py_ssize_t at
        cdef void* more
        for at in range(self.own, self.count):
            if self.keys[at] == key:
                return 0
        if self.count == self.room:
            more = realloc(self.keys, 2 * self.room * sizeof(uint64_t))
            if more != NULL:
                self.keys = <uint64_t*> more
                more = realloc(self.owners, 2 * self.room * sizeof(int64_t))
            if more == NULL:
                with gil:
                    raise MemoryError(f"no memory for {2 * self.room} keys of texts")
            self.owners = <int64_t*> more
            self.room *= 2
        self.keys[self.count] = key
        self.owners[self.count] = owner
        self.count += 1
        return 0

    cdef tuple arrays(self):
        cdef int64_t[::1] owners
        cdef int64_t[::1] keys
        whose, found = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        if self.count:
            owners, keys = whose, found
            memcpy(&owners[0], self.owners, self.count * sizeof(int64_t))
            memcpy(&keys[0], self.keys, self.count * sizeof(uint64_t))
        return whose, found


cdef int deletions(
    _Found found, int64_t owner, const uint32_t* text, Py_ssize_t length, Py_ssize_t most,
    Py_ssize_t* gone,
) except -1 nogil:
    """The text without any of its characters, up to ``most`` of them. ``gone``: room for their
    places."""
    cdef Py_ssize_t count, at, place, last
    cdef uint64_t h
    for count in range(min(most, length) + 1):
        for at in range(count):
            gone[at] = at
        while True:
            h, last = DELETIONS, 0
            for at in range(count):
                h = hashed(h, text + last, gone[at] - last)
                last = gone[at] + 1
            found.add(owner, mixed(hashed(h, text + last, length - last)))
            at = count - 1
            while at >= 0 and gone[at] == length - count + at:
                at -= 1
            if at < 0:
                break
            gone[at] += 1
            for place in range(at + 1, count):
                gone[place] = gone[place - 1] + 1
    return 0


cdef inline uint64_t segment(
    const uint32_t* part, Py_ssize_t count, Py_ssize_t length, Py_ssize_t number
) noexcept nogil:
    return mixed(hashed(mixed(<uint64_t> length * GOLDEN + <uint64_t> number + 1), part, count))


def edit_keys(
    const uint32_t[::1] characters not None,
    const int64_t[::1] ends not None,
    Py_ssize_t edits,
    Py_ssize_t longest,
    bint is_stored,
):
    """Return the keys of texts: beside each its text, and the keys.

    ``longest``: how long a text with keys of deletions is at most. ``is_stored``: the keys under
    which a text is found. Otherwise those of all texts that may be close to it.
    """
    cdef Py_ssize_t count = ends.shape[0], at, number, length, stop, other, shift, least, most
    cdef Py_ssize_t first, width, begin, start = 0, parts = edits + 1
    cdef const uint32_t* text
    cdef Py_ssize_t* gone
    cdef _Found found = _Found()
    if edits < 0 or longest < 0 or (count and ends[count - 1] != characters.shape[0]):
        raise InvalidArgumentError(
            f"{edits} edits, texts of {longest} characters, {characters.shape[0]} characters: give "
            "numbers that are not negative, and the end of each text"
        )
    for at in range(count):
        if ends[at] < start or ends[at] > characters.shape[0]:
            raise InvalidArgumentError(f"text {at} ends at {ends[at]}: ends have to ascend")
        start = ends[at]
    gone = <Py_ssize_t*> malloc((edits + 1) * sizeof(Py_ssize_t))
    if gone == NULL:
        raise MemoryError(f"no memory for {edits} places")
    try:
        with nogil:
            start = 0
            for at in range(count):
                stop, length = ends[at], ends[at] - start
                text = &characters[0] + start if length else NULL
                start = stop
                found.own = found.count
                if length <= longest + (0 if is_stored else edits):
                    deletions(found, at, text, length, edits, gone)
                if is_stored:
                    if length > longest:
                        for number in range(parts):
                            first = number * length // parts
                            width = (number + 1) * length // parts - first
                            found.add(at, segment(text + first, width, length, number))
                    continue
                for other in range(max(longest + 1, length - edits), length + edits + 1):
                    for number in range(parts):
                        first = number * other // parts
                        width = (number + 1) * other // parts - first
                        # Before the first segment that is whole there is one edit a segment, and
                        # behind it are the others.
                        least = max(-number, length - other - (edits - number))
                        most = min(number, length - other + (edits - number))
                        for shift in range(least, most + 1):
                            begin = first + shift
                            if begin >= 0 and begin + width <= length:
                                found.add(at, segment(text + begin, width, other, number))
    finally:
        free(gone)
    return found.arrays()
