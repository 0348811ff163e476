"""FpTree: documents as paths of a prefix tree.

A probe goes into the one child it agrees with, and into all children of an attribute that it lacks.

Source: Gjurovski and Michel, *Scaling Out Schema-free Stream Joins* (ICDE 2020). The algorithms as
printed give false pairs; these count the shared attributes on the way and begin at the root with
the first attribute.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from lsmstate.cython_ext.base.coding cimport Buffer, put_bytes, put_u32, release, reserve
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents, mixed
from lsmstate.cython_ext.documents.document_index cimport DocumentIndex, fill_to

import numpy as np

cdef enum:
    NO_NODE = -1
    FIRST_ORDER = 256  # documents by which attributes are ordered first
    LAST_ORDER = 4096

# Nanoseconds, for ``work``.
cdef enum:
    NS_STORED = 120  # a pair
    NS_VISIT = 40
    NS_CHILD = 15
    NS_LOOKUP = 40


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
        self.next_order = FIRST_ORDER
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
        if place + 1 >= self.next_order and self.next_order < LAST_ORDER:
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
        self.work += <uint64_t> size * NS_STORED
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
            self.work += NS_VISIT
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
                    self.work += NS_LOOKUP
                    child = self.lookup(<uint64_t> at << 32 | (value - 1))
                    if child != NO_NODE:
                        next_visit.node = child
                        next_visit.shared = visit.shared + 1
                        put_bytes(&self.visits, &next_visit, sizeof(Visit))
                else:
                    child = group.children
                    while child != NO_NODE:
                        self.work += NS_CHILD
                        next_visit.node = child
                        next_visit.shared = visit.shared
                        put_bytes(&self.visits, &next_visit, sizeof(Visit))
                        child = (<const Node*> self.nodes.data)[child].sibling
                at = group.next
        for i in range(size):
            own[pairs[i] >> 32] = 0
        return 0
