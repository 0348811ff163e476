"""Indexes of documents by their values.

- ``PostingLists`` (an inverted index): the documents of each value; candidates are counted.
- ``Bitmaps``: of frequent attributes and values, one bit for each document. A block of documents
  is left out at once if none of them shares a value, or all of them disagree.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport Buffer, __builtin_ctzll, put_u32, release, reserve
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents
from lsmstate.cython_ext.documents.document_index cimport (
    DocumentIndex,
    List,
    fill_to,
    put_number,
)

import numpy as np

cdef enum:
    BLOCK_WORDS = 64
    BLOCK = 4096  # documents of a block of bitmaps
    FIRST_BITMAPS = 256  # documents before which there are no bitmaps
    MOST_BITMAPS = 64  # of attributes

# Nanoseconds, for ``work``.
cdef enum:
    NS_STORED = 15  # a pair
    NS_BLOCK = 8  # a bitmap's block
    NS_WORD = 4
    NS_LISTED = 2
    NS_CANDIDATE = 80


cdef struct Term:  # a pair of the document that is looked up
    const uint64_t* with_value
    const uint64_t* with_attribute
    const uint32_t* list
    uint32_t list_size
    uint32_t cursor


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
        self.work += <uint64_t> size * NS_STORED
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
                self.work += NS_LISTED
                if counts[document] == 0:
                    put_u32(&self.touched, document)
                counts[document] += 1
        self.work += NS_CANDIDATE * (self.touched.size // 4)
        for i in range(<uint32_t> (self.touched.size // 4)):
            document = (<uint32_t*> self.touched.data)[i]
            counts[document] = 0
            if self.matches(pairs, size, document):
                put_u32(&self.found, document)
        return 0


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
        self.work += <uint64_t> size * (NS_BLOCK + NS_WORD * n_words)
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
                if not decides:
                    self.work += NS_CANDIDATE
                if decides or self.matches(pairs, size, document):
                    put_u32(&self.found, document)
        return 0


cdef void set_bit(uint64_t* bits, Py_ssize_t place) noexcept nogil:
    if bits != NULL:
        bits[place >> 6] |= <uint64_t> 1 << (place & 63)
