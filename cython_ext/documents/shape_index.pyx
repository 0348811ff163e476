"""ShapeIndex: documents of one set of attributes together.

Documents of one *shape* have the same attributes. They are one relation, and a lookup joins it by
the attributes that it shares: of their values' posting lists in this shape it takes the shortest,
and compares what stands there. A value that the shape lacks rules all its documents out, so
attributes of many values are looked up first.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from lsmstate.cython_ext.base.coding cimport Buffer, put_bytes, put_u32, release, reserve
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents, mixed
from lsmstate.cython_ext.documents.document_index cimport (
    DocumentIndex,
    List,
    fill_to,
    put_number,
)

cdef enum:
    FIRST_SLOTS = 1024
    SHORT = 4  # a list that is compared without a look at others
    NONE = -1

# Nanoseconds, for ``work``.
cdef enum:
    NS_STORED = 30  # a pair
    NS_SHAPE = 3
    NS_LOOKUP = 40
    NS_COMPARED = 80


cdef struct Shape:
    uint64_t hash
    uint64_t mask  # of its attributes, modulo 64
    uint64_t begin  # among ``attributes``
    uint32_t size
    uint32_t documents
    uint32_t next_order


# An open hash table of numbers; a key is kept plus one.
cdef struct Table:
    uint64_t* keys
    uint32_t* numbers
    size_t mask
    size_t used


@cython.final
cdef class ShapeIndex(DocumentIndex):
    """The documents of each shape and value."""

    cdef Buffer shapes  # Shape[]
    cdef Buffer attributes  # uint32_t: of each shape in the order of lookups
    cdef Buffer distinct  # uint32_t beside each: how many values it has there
    cdef Buffer lists  # List[]: of a shape and a value
    cdef size_t list_bytes
    cdef Table table  # of lists
    cdef Table by_hash  # of shapes
    cdef Buffer own  # uint32_t by attribute: the value of the document at hand, plus one

    def __cinit__(self, AttributeValues values not None, int at_least=1):
        memset(&self.shapes, 0, sizeof(Buffer))
        memset(&self.attributes, 0, sizeof(Buffer))
        memset(&self.distinct, 0, sizeof(Buffer))
        memset(&self.lists, 0, sizeof(Buffer))
        memset(&self.own, 0, sizeof(Buffer))
        memset(&self.table, 0, sizeof(Table))
        memset(&self.by_hash, 0, sizeof(Table))
        open_table(&self.table, FIRST_SLOTS)
        open_table(&self.by_hash, FIRST_SLOTS)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.lists.size // sizeof(List)):
            free((<List*> self.lists.data)[i].at)
        release(&self.shapes)
        release(&self.attributes)
        release(&self.distinct)
        release(&self.lists)
        release(&self.own)
        close_table(&self.table)
        close_table(&self.by_hash)

    @property
    def shape_count(self):
        """How many shapes the documents have."""
        return self.shapes.size // sizeof(Shape)

    cdef size_t own_bytes(self) noexcept:
        return (
            self.shapes.capacity + self.attributes.capacity + self.distinct.capacity
            + self.lists.capacity + self.list_bytes + self.own.capacity
            + 12 * (self.table.mask + self.by_hash.mask + 2)
        )

    cdef int add(self, Py_ssize_t place) except -1:
        cdef uint32_t size, j, value
        cdef const uint64_t* pairs = self.documents.pairs_of(place, &size)
        cdef int64_t number = self.shape_of(pairs, size)
        cdef Shape* shape = <Shape*> self.shapes.data + number
        cdef const uint32_t* attributes
        cdef int64_t at
        cdef uint64_t key
        cdef List empty
        self.work += <uint64_t> size * NS_STORED
        self.fill_own(pairs, size)
        attributes = <const uint32_t*> self.attributes.data + shape.begin
        memset(&empty, 0, sizeof(List))
        for j in range(size):
            value = (<uint32_t*> self.own.data)[attributes[j]] - 1
            key = <uint64_t> number << 32 | value
            at = lookup(&self.table, key)
            if at == NONE:
                at = self.lists.size // sizeof(List)
                put_bytes(&self.lists, &empty, sizeof(List))
                insert(&self.table, key, <uint32_t> at)
                (<uint32_t*> self.distinct.data)[shape.begin + j] += 1
            self.list_bytes += put_number(<List*> self.lists.data + at, <uint32_t> place)
        self.empty_own(pairs, size)
        shape.documents += 1
        if shape.documents >= shape.next_order:
            shape.next_order *= 2
            self.order(shape)
        return 0

    cdef int64_t shape_of(self, const uint64_t* pairs, uint32_t size) except -1:
        """The shape of a document, which is a new one if no other document has it."""
        cdef uint64_t hash = mixed(size)
        cdef uint64_t mask = 0, key
        cdef uint32_t i, attribute
        cdef int64_t found
        cdef Shape added
        cdef const Shape* known
        for i in range(size):
            hash = mixed(hash ^ (pairs[i] >> 32))
            mask |= <uint64_t> 1 << (pairs[i] >> 32 & 63)
        key = hash >> 1
        while True:
            found = lookup(&self.by_hash, key)
            if found == NONE:
                break
            known = <const Shape*> self.shapes.data + found
            if known.hash == hash and self.is_of(known, pairs, size):
                return found
            key += 1  # another shape has it
        added.hash = hash
        added.mask = mask
        added.begin = self.attributes.size // 4
        added.size = size
        added.documents = 0
        added.next_order = 8
        for i in range(size):
            attribute = <uint32_t> (pairs[i] >> 32)
            put_u32(&self.attributes, attribute)
            put_u32(&self.distinct, 0)
        found = self.shapes.size // sizeof(Shape)
        put_bytes(&self.shapes, &added, sizeof(Shape))
        insert(&self.by_hash, key, <uint32_t> found)
        return found

    cdef bint is_of(self, const Shape* shape, const uint64_t* pairs, uint32_t size) except -1:
        """Whether a document has the attributes of a shape."""
        cdef const uint32_t* attributes = <const uint32_t*> self.attributes.data + shape.begin
        cdef const uint32_t* own
        cdef uint32_t j
        cdef bint found = True
        if shape.size != size:
            return False
        self.fill_own(pairs, size)
        own = <const uint32_t*> self.own.data
        for j in range(size):
            found = found and own[attributes[j]] != 0
        self.empty_own(pairs, size)
        return found

    cdef void order(self, Shape* shape) noexcept:
        """Attributes of many values come first."""
        cdef uint32_t* attributes = <uint32_t*> self.attributes.data + shape.begin
        cdef uint32_t* distinct = <uint32_t*> self.distinct.data + shape.begin
        cdef uint32_t i, attribute, count
        cdef int64_t j
        for i in range(1, shape.size):
            attribute = attributes[i]
            count = distinct[i]
            j = i
            while j > 0 and distinct[j - 1] < count:
                attributes[j] = attributes[j - 1]
                distinct[j] = distinct[j - 1]
                j -= 1
            attributes[j] = attribute
            distinct[j] = count

    cdef int fill_own(self, const uint64_t* pairs, uint32_t size) except -1:
        cdef uint32_t* own
        cdef uint32_t i
        fill_to(&self.own, 4 * <size_t> self.documents.values.n_attributes())
        own = <uint32_t*> self.own.data
        for i in range(size):
            own[pairs[i] >> 32] = <uint32_t> pairs[i] + 1
        return 0

    cdef void empty_own(self, const uint64_t* pairs, uint32_t size) noexcept:
        cdef uint32_t* own = <uint32_t*> self.own.data
        cdef uint32_t i
        for i in range(size):
            own[pairs[i] >> 32] = 0

    cdef int find(self, Documents others, Py_ssize_t place, Py_ssize_t limit) except -1:
        cdef uint32_t size, j, document
        cdef const uint64_t* pairs = others.pairs_of(place, &size)
        cdef const Shape* shapes
        cdef const List* best
        cdef uint64_t mask = 0
        cdef size_t number
        self.fill_own(pairs, size)
        for j in range(size):
            mask |= <uint64_t> 1 << (pairs[j] >> 32 & 63)
        shapes = <const Shape*> self.shapes.data
        self.work += NS_SHAPE * (self.shapes.size // sizeof(Shape))
        try:
            for number in range(self.shapes.size // sizeof(Shape)):
                if not shapes[number].mask & mask:
                    continue
                best = self.shortest(&shapes[number], number)
                if best == NULL:
                    continue
                for j in range(best.size):
                    document = best.at[j]
                    if <Py_ssize_t> document >= limit:
                        break
                    self.work += NS_COMPARED
                    if self.matches(pairs, size, document):
                        put_u32(&self.found, document)
        finally:
            self.empty_own(pairs, size)
        return 0

    cdef const List* shortest(self, const Shape* shape, uint64_t number) noexcept nogil:
        """The shortest list of a value that a shape shares with the document at hand; NULL: it
        shares none, or lacks one."""
        cdef const uint32_t* attributes = <const uint32_t*> self.attributes.data + shape.begin
        cdef const uint32_t* own = <const uint32_t*> self.own.data
        cdef const List* best = NULL
        cdef const List* found
        cdef uint32_t j, value
        cdef int64_t at
        for j in range(shape.size):
            value = own[attributes[j]]
            if value == 0:
                continue
            self.work += NS_LOOKUP
            at = lookup(&self.table, number << 32 | (value - 1))
            if at == NONE:
                return NULL
            found = <const List*> self.lists.data + at
            if best == NULL or found.size < best.size:
                best = found
                if best.size <= SHORT:
                    break
        return best


cdef int open_table(Table* table, size_t slots) except -1:
    table.keys = <uint64_t*> calloc(slots, 8)
    table.numbers = <uint32_t*> calloc(slots, 4)
    table.mask = slots - 1
    table.used = 0
    if table.keys == NULL or table.numbers == NULL:
        close_table(table)
        raise MemoryError(f"cannot allocate {slots} slots")
    return 0


cdef void close_table(Table* table) noexcept:
    free(table.keys)
    free(table.numbers)
    table.keys = NULL
    table.numbers = NULL


cdef int64_t lookup(const Table* table, uint64_t key) noexcept nogil:
    cdef size_t slot = mixed(key) & table.mask
    while table.keys[slot]:
        if table.keys[slot] == key + 1:
            return table.numbers[slot]
        slot = (slot + 1) & table.mask
    return NONE


cdef int insert(Table* table, uint64_t key, uint32_t number) except -1:
    """Add a key that the table lacks."""
    cdef Table larger
    cdef size_t old
    if 2 * (table.used + 1) > table.mask:
        open_table(&larger, 2 * (table.mask + 1))
        for old in range(table.mask + 1):
            if table.keys[old]:
                put(&larger, table.keys[old], table.numbers[old])
        larger.used = table.used
        close_table(table)
        table[0] = larger
    put(table, key + 1, number)
    table.used += 1
    return 0


cdef void put(Table* table, uint64_t kept, uint32_t number) noexcept nogil:
    cdef size_t slot = mixed(kept - 1) & table.mask
    while table.keys[slot]:
        slot = (slot + 1) & table.mask
    table.keys[slot] = kept
    table.numbers[slot] = number
