"""Which stored documents match another one: they share an attribute, and agree on all they share.

Three indexes have one interface, and give the same documents:

- ``PostingLists`` (an inverted index): the documents of each pair; candidates are counted.
- ``FpTree``: documents as paths of a prefix tree. A probe goes into the one child it agrees with,
  and into all children of an attribute that it lacks. Source: Gjurovski and Michel,
  *Scaling Out Schema-free Stream Joins* (ICDE 2020). The algorithms as printed give false pairs;
  these count the shared attributes on the way and begin at the root with the first attribute.
- ``Bitmaps``: of frequent attributes and values, one bit for each document. A block of documents
  is left out at once if none of them shares a value, or all of them disagree.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport (
    Buffer,
    __builtin_ctzll,
    put_bytes,
    put_u32,
    put_u64,
    release,
    reserve,
)
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents, mixed

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef enum:
    BLOCK_WORDS = 64
    BLOCK = 4096  # documents of a block of bitmaps
    FIRST_BITMAPS = 256  # documents before which there are no bitmaps
    MOST_BITMAPS = 64  # of attributes
    NO_NODE = -1


cdef struct List:
    uint32_t* at
    uint32_t size
    uint32_t capacity

cdef struct Term:  # a pair of the document that is looked up
    const uint64_t* with_value
    const uint64_t* with_attribute
    const uint32_t* list
    uint32_t list_size
    uint32_t cursor

cdef struct Node:
    int32_t groups
    int32_t documents
    int32_t sibling

cdef struct Group:  # the children of a node by one attribute
    uint32_t attribute
    int32_t next
    int32_t children

cdef struct Visit:
    int32_t node
    uint32_t shared


cdef class DocumentIndex:
    """Stored documents, and the ones among them that match another."""

    cdef readonly Documents documents
    cdef uint32_t at_least
    cdef Buffer found  # uint32_t: places of documents
    cdef Buffer cell_ends
    cdef Buffer cells

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        self.documents = Documents(values)
        self.at_least = max(1, at_least)
        memset(&self.found, 0, sizeof(Buffer))
        memset(&self.cell_ends, 0, sizeof(Buffer))
        memset(&self.cells, 0, sizeof(Buffer))

    def __init__(self, values, at_least=1):
        pass

    def __dealloc__(self):
        release(&self.found)
        release(&self.cell_ends)
        release(&self.cells)

    def __len__(self):
        return self.documents.count()

    @property
    def nbytes(self):
        """Bytes of the index, without the values."""
        return (
            self.documents.nbytes + self.found.capacity + self.cell_ends.capacity
            + self.cells.capacity + self.own_bytes()
        )

    def append(self, Documents others not None, const int64_t[::1] places, cells=None):
        """Store some documents. ``cells``: per document an array of the smaller buckets that it
        lies in too, as ends and numbers; None: in none."""
        cdef Py_ssize_t first = self.documents.count()
        cdef Py_ssize_t i
        self.documents.append(others, places)
        for i in range(first, self.documents.count()):
            self.add(i)
        if cells is not None:
            append_cells(&self.cell_ends, &self.cells, cells, places.shape[0])

    def pairs(
        self,
        Documents others not None,
        const int64_t[::1] places,
        const int64_t[::1] limits,
        Py_ssize_t first,
        int64_t skip,
        int64_t most,
        cells=None,
    ):
        """Find the stored documents that match some others.

        Args:
            others: Documents of the same values.
            places: Which of them.
            limits: Beside each, the place before which stored documents count.
            first: Position among ``places`` to begin with.
            skip: How many matches of it were given before.
            most: Most matches to give.
            cells: Of all ``others``, as in ``append``. A pair with a common cell is not given.

        Returns:
            Positions among ``places``; beside them places of stored documents; and where to go on:
            ``first`` and ``skip`` of the next call.

        Cost:
            A document whose matches are cut is looked up again by the next call.
        """
        cdef Py_ssize_t position = first
        cdef int64_t room = most
        cdef int64_t count, i
        cdef Buffer left
        cdef Buffer right
        cdef int64_t number
        cdef Buffer ends
        cdef Buffer numbers
        if others.values is not self.documents.values:
            raise InvalidArgumentError("documents of other values; read them with these")
        if limits.shape[0] != places.shape[0]:
            raise InvalidArgumentError(f"{places.shape[0]} places, {limits.shape[0]} limits")
        memset(&left, 0, sizeof(Buffer))
        memset(&right, 0, sizeof(Buffer))
        memset(&ends, 0, sizeof(Buffer))
        memset(&numbers, 0, sizeof(Buffer))
        try:
            if cells is not None:
                append_cells(&ends, &numbers, cells, others.count())
            while position < places.shape[0] and room > 0:
                if not 0 <= places[position] < others.count():
                    raise IndexError(f"document {places[position]} of {others.count()}")
                self.found.size = 0
                self.find(
                    others, places[position], min(limits[position], self.documents.count())
                )
                if cells is not None:
                    self.keep_own(&ends, &numbers, places[position])
                count = self.found.size // 4 - skip
                if count > 0:
                    count = min(count, room)
                    reserve(&left, 8 * count)
                    reserve(&right, 8 * count)
                    for i in range(count):
                        number = position
                        put_u64(&left, number)
                        number = (<uint32_t*> self.found.data)[skip + i]
                        put_u64(&right, number)
                    room -= count
                if room > 0 or skip + count == <int64_t> self.found.size // 4:
                    position += 1
                    skip = 0
                else:
                    skip += count
            return numbers_of(&left), numbers_of(&right), position, skip
        finally:
            release(&left)
            release(&right)
            release(&ends)
            release(&numbers)

    cdef int keep_own(self, const Buffer* ends, const Buffer* numbers, Py_ssize_t place) except -1:
        """Leave out what has a smaller cell in common with a document."""
        cdef uint32_t* found = <uint32_t*> self.found.data
        cdef size_t i, kept = 0
        for i in range(self.found.size // 4):
            if not has_common(ends, numbers, place, &self.cell_ends, &self.cells, found[i]):
                found[kept] = found[i]
                kept += 1
        self.found.size = 4 * kept
        return 0

    cdef size_t own_bytes(self) noexcept:
        return 0

    cdef int add(self, Py_ssize_t place) except -1:
        """Index a stored document."""
        return 0

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        """Put the matches of a document before a place into ``found``."""
        return 0


cdef class PostingLists(DocumentIndex):
    """The documents of each pair."""

    cdef Buffer lists  # List[] by value
    cdef size_t list_bytes
    cdef Buffer counts  # uint32_t per document: 0 between lookups
    cdef Buffer touched

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        memset(&self.lists, 0, sizeof(Buffer))
        memset(&self.counts, 0, sizeof(Buffer))
        memset(&self.touched, 0, sizeof(Buffer))

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.lists.size // sizeof(List)):
            free((<List*> self.lists.data)[i].at)
        release(&self.lists)
        release(&self.counts)
        release(&self.touched)

    cdef size_t own_bytes(self) noexcept:
        return (
            self.lists.capacity + self.list_bytes + self.counts.capacity + self.touched.capacity
        )

    cdef int add(self, Py_ssize_t place) except -1:
        cdef uint32_t size
        cdef const uint64_t* pairs = self.documents.pairs_of(place, &size)
        cdef uint32_t i
        fill_to(&self.lists, self.documents.values.n_values() * sizeof(List))
        for i in range(size):
            self.list_bytes += put_number(
                <List*> self.lists.data + <uint32_t> pairs[i], <uint32_t> place
            )
        put_u32(&self.counts, 0)
        return 0

    cdef const List* list_of(self, uint32_t value) noexcept nogil:
        """The documents of a value; NULL: there are none."""
        if (value + <size_t> 1) * sizeof(List) > self.lists.size:
            return NULL
        return <const List*> self.lists.data + value

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        cdef uint32_t size, i, j, document
        cdef const uint64_t* pairs = others.pairs_of(place, &size)
        cdef const List* list_
        cdef uint32_t* counts = <uint32_t*> self.counts.data
        self.touched.size = 0
        for i in range(size):
            list_ = self.list_of(<uint32_t> pairs[i])
            if list_ == NULL:
                continue
            for j in range(list_.size):
                document = list_.at[j]
                if <Py_ssize_t> document >= limit:
                    break
                if counts[document] == 0:
                    put_u32(&self.touched, document)
                counts[document] += 1
        for i in range(<uint32_t> (self.touched.size // 4)):
            document = (<uint32_t*> self.touched.data)[i]
            counts[document] = 0
            if self.matches(pairs, size, document):
                put_u32(&self.found, document)
        return 0

    cdef bint matches(self, const uint64_t* pairs, uint32_t size, uint32_t document) noexcept nogil:
        cdef uint32_t own_size
        cdef const uint64_t* own = self.documents.pairs_of(document, &own_size)
        return match(pairs, size, own, own_size, self.at_least)


@cython.final
cdef class Bitmaps(PostingLists):
    """One bit for each document, of frequent attributes and of frequent values."""

    cdef Buffer of_attribute  # int32_t: number of the bitmap, plus one
    cdef Buffer of_value
    cdef uint64_t** bitmaps
    cdef size_t n_bitmaps
    cdef size_t words  # of each bitmap
    cdef Py_ssize_t next_choice
    cdef Buffer terms

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        memset(&self.of_attribute, 0, sizeof(Buffer))
        memset(&self.of_value, 0, sizeof(Buffer))
        memset(&self.terms, 0, sizeof(Buffer))
        self.next_choice = FIRST_BITMAPS

    def __dealloc__(self):
        self.drop_bitmaps()
        release(&self.of_attribute)
        release(&self.of_value)
        release(&self.terms)

    cdef void drop_bitmaps(self) noexcept:
        cdef size_t i
        for i in range(self.n_bitmaps):
            free(self.bitmaps[i])
        free(self.bitmaps)
        self.bitmaps = NULL
        self.n_bitmaps = 0

    cdef size_t own_bytes(self) noexcept:
        return (
            PostingLists.own_bytes(self) + self.n_bitmaps * self.words * 8
            + self.of_attribute.capacity + self.of_value.capacity
        )

    cdef int add(self, Py_ssize_t place) except -1:
        cdef uint32_t size, i
        cdef const uint64_t* pairs
        PostingLists.add(self, place)
        if place + 1 >= self.next_choice:
            self.choose()
            return 0
        pairs = self.documents.pairs_of(place, &size)
        for i in range(size):
            set_bit(self.bitmap(&self.of_attribute, pairs[i] >> 32), place)
            set_bit(self.bitmap(&self.of_value, pairs[i] & 0xFFFFFFFF), place)
        return 0

    cdef uint64_t* bitmap(self, const Buffer* numbers, uint64_t of) noexcept nogil:
        """The bitmap of an attribute or a value; NULL: it has none."""
        cdef int32_t number
        if 4 * of >= numbers.size:
            return NULL
        number = (<int32_t*> numbers.data)[of]
        return self.bitmaps[number - 1] if number else NULL

    cdef int choose(self) except -1:
        """Choose anew which attributes and values have bitmaps, with room for twice the documents.
        Cost: a walk over all documents, each time their number has doubled."""
        cdef Py_ssize_t n = self.documents.count()
        cdef uint32_t n_attributes = self.documents.values.n_attributes()
        cdef uint32_t n_values = self.documents.values.n_values()
        cdef uint32_t size, i, value
        cdef Py_ssize_t place
        cdef const uint64_t* pairs
        cdef const List* list_
        cdef uint64_t* bits
        self.next_choice = 2 * n
        self.drop_bitmaps()
        covered = np.zeros(n_attributes, np.int64)
        cdef int64_t[::1] coverage = covered
        for place in range(n):
            pairs = self.documents.pairs_of(place, &size)
            for i in range(size):
                coverage[pairs[i] >> 32] += 1
        order = np.argsort(-covered, kind="stable")[:MOST_BITMAPS]
        chosen = [int(number) for number in order if 16 * covered[number] >= n]
        frequent = [
            value
            for value in range(min(n_values, <uint32_t> (self.lists.size // sizeof(List))))
            if 32 * <Py_ssize_t> (<List*> self.lists.data)[value].size >= n
        ]
        self.words = (2 * n + 63) // 64
        # Blocks are read as a whole.
        self.words = (self.words + BLOCK_WORDS - 1) // BLOCK_WORDS * BLOCK_WORDS
        self.bitmaps = <uint64_t**> calloc(len(chosen) + len(frequent) + 1, sizeof(void*))
        if self.bitmaps == NULL:
            raise MemoryError(f"cannot allocate {len(chosen) + len(frequent)} bitmaps")
        self.of_attribute.size = self.of_value.size = 0
        fill_to(&self.of_attribute, 4 * <size_t> n_attributes)
        fill_to(&self.of_value, 4 * <size_t> n_values)
        for number in chosen:
            self.new_bitmap(&self.of_attribute, number)
        for number in frequent:
            bits = self.new_bitmap(&self.of_value, number)
            list_ = self.list_of(number)
            for i in range(list_.size):
                set_bit(bits, list_.at[i])
        for place in range(n):
            pairs = self.documents.pairs_of(place, &size)
            for i in range(size):
                set_bit(self.bitmap(&self.of_attribute, pairs[i] >> 32), place)
        return 0

    cdef uint64_t* new_bitmap(self, Buffer* numbers, uint32_t of) except NULL:
        cdef uint64_t* bits = <uint64_t*> calloc(self.words, 8)
        if bits == NULL:
            raise MemoryError(f"cannot allocate {self.words} words")
        self.bitmaps[self.n_bitmaps] = bits
        self.n_bitmaps += 1
        (<int32_t*> numbers.data)[of] = <int32_t> self.n_bitmaps
        return bits

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        cdef uint32_t size, i
        cdef const uint64_t* pairs = others.pairs_of(place, &size)
        cdef Term* terms
        cdef const List* list_
        cdef bint decides = self.at_least == 1
        cdef Py_ssize_t block
        if self.n_bitmaps == 0:
            return PostingLists.find(self, others, place, limit)
        self.terms.size = 0
        reserve(&self.terms, size * sizeof(Term))
        terms = <Term*> self.terms.data
        for i in range(size):
            list_ = self.list_of(<uint32_t> pairs[i])
            terms[i].list = NULL
            terms[i].list_size = terms[i].cursor = 0
            terms[i].with_attribute = self.bitmap(&self.of_attribute, pairs[i] >> 32)
            terms[i].with_value = self.bitmap(&self.of_value, pairs[i] & 0xFFFFFFFF)
            if list_ != NULL and terms[i].with_value == NULL:
                terms[i].list = list_.at
                terms[i].list_size = list_.size
            if terms[i].with_attribute == NULL:
                decides = False
        for block in range((limit + BLOCK - 1) // BLOCK):
            self.find_in_block(pairs, size, block, limit, decides)
        return 0

    cdef int find_in_block(
        self, const uint64_t* pairs, uint32_t size, Py_ssize_t block, Py_ssize_t limit, bint decides
    ) except -1:
        cdef Term* terms = <Term*> self.terms.data
        cdef uint64_t[BLOCK_WORDS] shares
        cdef uint64_t[BLOCK_WORDS] differs
        cdef uint64_t[BLOCK_WORDS] kept
        cdef const uint64_t* with_value
        cdef const uint64_t* with_attribute
        cdef Py_ssize_t first = block * BLOCK_WORDS
        cdef Py_ssize_t n_words = min(<Py_ssize_t> BLOCK_WORDS, (limit + 63) // 64 - first)
        cdef uint32_t document, end = <uint32_t> ((block + 1) * BLOCK)
        cdef uint32_t i, at
        cdef Py_ssize_t w
        cdef uint64_t word
        memset(shares, 0, sizeof(shares))
        memset(differs, 0, sizeof(differs))
        for i in range(size):
            with_attribute = terms[i].with_attribute
            with_value = terms[i].with_value
            if with_attribute != NULL:
                with_attribute += first
            if with_value != NULL:
                with_value += first
                if with_attribute == NULL:
                    for w in range(n_words):
                        shares[w] |= with_value[w]
                else:
                    for w in range(n_words):
                        shares[w] |= with_value[w]
                        differs[w] |= with_attribute[w] & ~with_value[w]
                continue
            at = terms[i].cursor
            if with_attribute != NULL:
                if at < terms[i].list_size and terms[i].list[at] < end:
                    # What differed before stays; of the rest, those listed do not differ.
                    memcpy(kept, differs, sizeof(differs))
                    for w in range(n_words):
                        differs[w] |= with_attribute[w]
                    while at < terms[i].list_size and terms[i].list[at] < end:
                        w = (terms[i].list[at] >> 6) - first
                        word = <uint64_t> 1 << (terms[i].list[at] & 63)
                        shares[w] |= word
                        differs[w] &= kept[w] | ~word
                        at += 1
                else:
                    for w in range(n_words):
                        differs[w] |= with_attribute[w]
            else:
                while at < terms[i].list_size and terms[i].list[at] < end:
                    w = (terms[i].list[at] >> 6) - first
                    shares[w] |= <uint64_t> 1 << (terms[i].list[at] & 63)
                    at += 1
            terms[i].cursor = at
        for w in range(n_words):
            word = shares[w] & ~differs[w]
            if (first + w + 1) * 64 > limit:
                word &= (<uint64_t> 1 << (limit & 63)) - 1
            while word:
                document = <uint32_t> ((first + w) * 64 + __builtin_ctzll(word))
                word &= word - 1
                if decides or self.matches(pairs, size, document):
                    put_u32(&self.found, document)
        return 0


@cython.final
cdef class FpTree(DocumentIndex):
    """Documents as paths of a prefix tree, the attributes of most documents first."""

    cdef Buffer nodes
    cdef Buffer groups
    cdef Buffer next_document  # int32_t
    cdef uint64_t* keys  # of children and groups, plus one
    cdef int32_t* found_at
    cdef size_t mask
    cdef size_t used
    cdef Buffer ranks  # uint32_t by attribute: its place in the order, plus one
    cdef uint32_t n_ranks
    cdef Py_ssize_t next_order
    cdef Buffer own  # uint32_t by attribute: the value of the document looked up, plus one
    cdef Buffer visits
    cdef Buffer path

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        memset(&self.nodes, 0, sizeof(Buffer))
        memset(&self.groups, 0, sizeof(Buffer))
        memset(&self.next_document, 0, sizeof(Buffer))
        memset(&self.ranks, 0, sizeof(Buffer))
        memset(&self.own, 0, sizeof(Buffer))
        memset(&self.visits, 0, sizeof(Buffer))
        memset(&self.path, 0, sizeof(Buffer))
        self.next_order = FIRST_BITMAPS
        self.clear()

    def __dealloc__(self):
        free(self.keys)
        free(self.found_at)
        release(&self.nodes)
        release(&self.groups)
        release(&self.next_document)
        release(&self.ranks)
        release(&self.own)
        release(&self.visits)
        release(&self.path)

    cdef size_t own_bytes(self) noexcept:
        return (
            self.nodes.capacity + self.groups.capacity + self.next_document.capacity
            + self.ranks.capacity + self.own.capacity + 12 * (self.mask + 1)
        )

    cdef int clear(self) except -1:
        free(self.keys)
        free(self.found_at)
        self.keys = NULL
        self.found_at = NULL
        self.mask = 1023
        self.used = 0
        self.keys = <uint64_t*> calloc(self.mask + 1, 8)
        self.found_at = <int32_t*> calloc(self.mask + 1, 4)
        if self.keys == NULL or self.found_at == NULL:
            raise MemoryError("cannot allocate a table")
        self.nodes.size = self.groups.size = self.next_document.size = 0
        self.new_node(NO_NODE)
        return 0

    cdef int32_t new_node(self, int32_t sibling) except -2:
        cdef Node added
        added.groups = added.documents = NO_NODE
        added.sibling = sibling
        put_bytes(&self.nodes, &added, sizeof(Node))
        return <int32_t> (self.nodes.size // sizeof(Node) - 1)

    cdef int32_t lookup(self, uint64_t key) noexcept nogil:
        cdef size_t slot = mixed(key) & self.mask
        while self.keys[slot]:
            if self.keys[slot] == key + 1:
                return self.found_at[slot]
            slot = (slot + 1) & self.mask
        return NO_NODE

    cdef int insert(self, uint64_t key, int32_t number) except -1:
        cdef uint64_t* keys
        cdef int32_t* found_at
        cdef size_t mask, old, slot
        if 2 * (self.used + 1) > self.mask:
            mask = 2 * self.mask + 1
            keys = <uint64_t*> calloc(mask + 1, 8)
            found_at = <int32_t*> calloc(mask + 1, 4)
            if keys == NULL or found_at == NULL:
                free(keys)
                free(found_at)
                raise MemoryError(f"cannot allocate {mask + 1} slots")
            for old in range(self.mask + 1):
                if self.keys[old]:
                    slot = mixed(self.keys[old] - 1) & mask
                    while keys[slot]:
                        slot = (slot + 1) & mask
                    keys[slot] = self.keys[old]
                    found_at[slot] = self.found_at[old]
            free(self.keys)
            free(self.found_at)
            self.keys = keys
            self.found_at = found_at
            self.mask = mask
        slot = mixed(key) & self.mask
        while self.keys[slot]:
            slot = (slot + 1) & self.mask
        self.keys[slot] = key + 1
        self.found_at[slot] = number
        self.used += 1
        return 0

    cdef int add(self, Py_ssize_t place) except -1:
        cdef Py_ssize_t each
        if place + 1 >= self.next_order and self.next_order < 16 * FIRST_BITMAPS:
            self.next_order *= 4
            self.order()
            self.clear()
            for each in range(place):
                self.add_path(each)
        return self.add_path(place)

    cdef int order(self) except -1:
        """Order attributes: those of most documents first, then those of fewest values."""
        cdef uint32_t n_attributes = self.documents.values.n_attributes()
        cdef uint32_t size, i
        cdef Py_ssize_t place
        cdef const uint64_t* pairs
        covered = np.zeros(n_attributes, np.int64)
        distinct = np.zeros(n_attributes, np.int64)
        seen = np.zeros(self.documents.values.n_values(), np.uint8)
        cdef int64_t[::1] coverage = covered
        cdef int64_t[::1] values = distinct
        cdef uint8_t[::1] is_seen = seen
        for place in range(self.documents.count()):
            pairs = self.documents.pairs_of(place, &size)
            for i in range(size):
                coverage[pairs[i] >> 32] += 1
                if not is_seen[pairs[i] & 0xFFFFFFFF]:
                    is_seen[pairs[i] & 0xFFFFFFFF] = 1
                    values[pairs[i] >> 32] += 1
        self.ranks.size = 0
        fill_to(&self.ranks, 4 * <size_t> n_attributes)
        self.n_ranks = 0
        for number in np.lexsort((distinct, -covered)):
            i = number
            self.n_ranks += 1
            (<uint32_t*> self.ranks.data)[i] = self.n_ranks
        return 0

    cdef int add_path(self, Py_ssize_t place) except -1:
        cdef uint32_t size, i, j, attribute
        cdef const uint64_t* pairs = self.documents.pairs_of(place, &size)
        cdef uint64_t* path
        cdef uint64_t item
        cdef uint32_t* ranks
        cdef int32_t node = 0
        cdef int32_t group, child, last = <int32_t> place
        cdef Group added
        fill_to(&self.ranks, 4 * <size_t> self.documents.values.n_attributes())
        ranks = <uint32_t*> self.ranks.data
        self.path.size = 0
        reserve(&self.path, 8 * <size_t> size)
        path = <uint64_t*> self.path.data
        for i in range(size):
            attribute = <uint32_t> (pairs[i] >> 32)
            if ranks[attribute] == 0:
                self.n_ranks += 1
                ranks[attribute] = self.n_ranks
            item = <uint64_t> ranks[attribute] << 32 | i
            j = i
            while j > 0 and path[j - 1] > item:
                path[j] = path[j - 1]
                j -= 1
            path[j] = item
        for i in range(size):
            item = pairs[path[i] & 0xFFFFFFFF]
            attribute = <uint32_t> (item >> 32)
            group = self.lookup(<uint64_t> 1 << 63 | <uint64_t> node << 32 | attribute)
            if group == NO_NODE:
                added.attribute = attribute
                added.next = (<Node*> self.nodes.data)[node].groups
                added.children = NO_NODE
                put_bytes(&self.groups, &added, sizeof(Group))
                group = <int32_t> (self.groups.size // sizeof(Group) - 1)
                (<Node*> self.nodes.data)[node].groups = group
                self.insert(<uint64_t> 1 << 63 | <uint64_t> node << 32 | attribute, group)
            child = self.lookup(<uint64_t> group << 32 | <uint32_t> item)
            if child == NO_NODE:
                child = self.new_node((<Group*> self.groups.data)[group].children)
                (<Group*> self.groups.data)[group].children = child
                self.insert(<uint64_t> group << 32 | <uint32_t> item, child)
            node = child
        put_bytes(&self.next_document, &(<Node*> self.nodes.data)[node].documents, 4)
        (<Node*> self.nodes.data)[node].documents = last
        return 0

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        cdef uint32_t size, i, value
        cdef const uint64_t* pairs = others.pairs_of(place, &size)
        cdef uint32_t* own
        cdef Visit visit, next_visit
        cdef const Node* node
        cdef const Group* group
        cdef int32_t at, child, document
        fill_to(&self.own, 4 * <size_t> self.documents.values.n_attributes())
        own = <uint32_t*> self.own.data
        for i in range(size):
            own[pairs[i] >> 32] = <uint32_t> pairs[i] + 1
        self.visits.size = 0
        visit.node = 0
        visit.shared = 0
        put_bytes(&self.visits, &visit, sizeof(Visit))
        while self.visits.size:
            self.visits.size -= sizeof(Visit)
            memcpy(&visit, self.visits.data + self.visits.size, sizeof(Visit))
            node = <const Node*> self.nodes.data + visit.node
            if visit.shared >= self.at_least:
                document = node.documents
                while document != NO_NODE:
                    if document < limit:
                        put_u32(&self.found, document)
                    document = (<int32_t*> self.next_document.data)[document]
            at = node.groups
            while at != NO_NODE:
                group = <const Group*> self.groups.data + at
                value = own[group.attribute]
                if value:
                    child = self.lookup(<uint64_t> at << 32 | (value - 1))
                    if child != NO_NODE:
                        next_visit.node = child
                        next_visit.shared = visit.shared + 1
                        put_bytes(&self.visits, &next_visit, sizeof(Visit))
                else:
                    child = group.children
                    while child != NO_NODE:
                        next_visit.node = child
                        next_visit.shared = visit.shared
                        put_bytes(&self.visits, &next_visit, sizeof(Visit))
                        child = (<const Node*> self.nodes.data)[child].sibling
                at = group.next
        for i in range(size):
            own[pairs[i] >> 32] = 0
        return 0


def matching(
    Documents first not None,
    const int64_t[::1] first_places,
    Documents second not None,
    const int64_t[::1] second_places,
    int at_least=1,
    first_cells=None,
    second_cells=None,
):
    """Return for each pair of documents whether they match, and have no cell in common. Cells are
    those of all documents, as in ``DocumentIndex.append``; None: they have none."""
    cdef Py_ssize_t i, n = first_places.shape[0]
    cdef bint has_cells = first_cells is not None
    cdef Buffer ends, cells, other_ends, other_cells
    cdef uint32_t size, other_size
    cdef const uint64_t* pairs
    cdef const uint64_t* others
    if first.values is not second.values or second_places.shape[0] != n:
        raise InvalidArgumentError("pairs of documents of other values, or of another number")
    found = np.zeros(n, np.bool_)
    cdef uint8_t[::1] into = found.view(np.uint8)
    memset(&ends, 0, sizeof(Buffer))
    memset(&cells, 0, sizeof(Buffer))
    memset(&other_ends, 0, sizeof(Buffer))
    memset(&other_cells, 0, sizeof(Buffer))
    try:
        if has_cells:
            append_cells(&ends, &cells, first_cells, first.count())
            append_cells(&other_ends, &other_cells, second_cells, second.count())
        for i in range(n):
            if not (
                0 <= first_places[i] < first.count() and 0 <= second_places[i] < second.count()
            ):
                raise IndexError(f"documents {first_places[i]} and {second_places[i]}")
            pairs = first.pairs_of(first_places[i], &size)
            others = second.pairs_of(second_places[i], &other_size)
            into[i] = match(pairs, size, others, other_size, max(1, at_least)) and not (
                has_cells
                and has_common(
                    &ends, &cells, first_places[i], &other_ends, &other_cells, second_places[i]
                )
            )
    finally:
        release(&ends)
        release(&cells)
        release(&other_ends)
        release(&other_cells)
    return found


cdef bint match(
    const uint64_t* a, uint32_t a_size, const uint64_t* b, uint32_t b_size, uint32_t at_least
) noexcept nogil:
    """Whether two documents share attributes, and agree on all they share."""
    cdef uint32_t i = 0, j = 0, shared = 0
    cdef uint64_t x, y
    while i < a_size and j < b_size:
        x = a[i] >> 32
        y = b[j] >> 32
        if x == y:
            if a[i] != b[j]:
                return False
            shared += 1
        i += x <= y
        j += y <= x
    return shared >= at_least


cdef int fill_to(Buffer* buffer, size_t size) except -1:
    """Make a buffer at least so large, its new bytes zero."""
    if buffer.size < size:
        reserve(buffer, size - buffer.size)
        memset(buffer.data + buffer.size, 0, size - buffer.size)
        buffer.size = size
    return 0


cdef int64_t put_number(List* list_, uint32_t number) except -1:
    """Append to a list. Return by how many bytes it grew."""
    cdef uint32_t capacity
    cdef void* at
    cdef int64_t grown = 0
    if list_.size == list_.capacity:
        capacity = 2 if list_.capacity == 0 else list_.capacity + list_.capacity // 2 + 1
        at = realloc(list_.at, 4 * <size_t> capacity)
        if at == NULL:
            raise MemoryError(f"cannot allocate {4 * capacity} bytes")
        grown = 4 * <int64_t> (capacity - list_.capacity)
        list_.at = <uint32_t*> at
        list_.capacity = capacity
    list_.at[list_.size] = number
    list_.size += 1
    return grown


cdef void set_bit(uint64_t* bits, Py_ssize_t place) noexcept nogil:
    if bits != NULL:
        bits[place >> 6] |= <uint64_t> 1 << (place & 63)


cdef int append_cells(Buffer* ends, Buffer* numbers, cells, Py_ssize_t count) except -1:
    """Append lists of cells: their ends and their numbers, ascending in each list."""
    cdef const int64_t[::1] end = cells[0]
    cdef const int64_t[::1] number = cells[1]
    cdef int64_t base = numbers.size // 8
    cdef int64_t before = 0, each
    cdef Py_ssize_t i
    if end.shape[0] != count or (count and end[count - 1] != number.shape[0]):
        raise InvalidArgumentError(f"cells of {end.shape[0]} documents, of {count}")
    for i in range(count):
        if end[i] < before:
            raise InvalidArgumentError(f"cells of document {i} end before they begin")
        before = end[i]
        each = base + end[i]
        put_bytes(ends, &each, 8)
    if number.shape[0]:
        put_bytes(numbers, &number[0], 8 * number.shape[0])
    return 0


cdef bint has_common(
    const Buffer* a_ends, const Buffer* a, Py_ssize_t i, const Buffer* b_ends, const Buffer* b,
    Py_ssize_t j,
) noexcept nogil:
    """Whether two ascending lists of cells have one in common."""
    cdef const int64_t* x_ends = <const int64_t*> a_ends.data
    cdef const int64_t* y_ends = <const int64_t*> b_ends.data
    cdef const int64_t* x_cells = <const int64_t*> a.data
    cdef const int64_t* y_cells = <const int64_t*> b.data
    cdef int64_t x = x_ends[i - 1] if i else 0
    cdef int64_t y = y_ends[j - 1] if j else 0
    cdef int64_t left, right
    while x < x_ends[i] and y < y_ends[j]:
        left = x_cells[x]
        right = y_cells[y]
        if left == right:
            return True
        x += left < right
        y += right < left
    return False


cdef object numbers_of(const Buffer* buffer):
    """The buffer's numbers as an array."""
    if buffer.size == 0:
        return np.empty(0, np.int64)
    return np.frombuffer((<char*> buffer.data)[: buffer.size], np.int64)
