"""B+-trees of entries in key order, one for each stream of a memtable.

- Searches mostly wait for memory. A page therefore holds eight bytes of each key, and most searches
  visit only the entry they find.
- Each page has its own eight bytes: those after the common prefix of all keys between its bounds
  (prefix truncation; Graefe, Modern B-Tree Techniques, 2011, section 3.3). They distinguish keys
  however long the common prefix is. Ties are decided by whole keys.
- A group of keys prefetches its leaves together, then its entries.
- Entries never move and are never removed. A full page splits: its upper half moves to a new page
  after it, or nothing if keys are inserted in ascending order.
- The caller makes pages and entries; nothing is allocated here.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from lsmstate.cython_ext.base.coding cimport STREAM_BYTES, compare, shared_prefix

cdef extern from *:
    uint64_t __builtin_bswap64(uint64_t) nogil
    void __builtin_prefetch(const void*) nogil

cdef enum:
    PREFIX_BYTES = 8
    LINE_BYTES = 64


cdef inline uint64_t _prefix(const uint8_t* key, size_t size, size_t skip) noexcept nogil:
    cdef uint64_t prefix = 0
    cdef size_t i
    if size >= skip + PREFIX_BYTES:
        memcpy(&prefix, key + skip, PREFIX_BYTES)
        return __builtin_bswap64(prefix)
    for i in range(skip, size):
        prefix |= (<uint64_t> key[i]) << (56 - 8 * (i - skip))
    return prefix


cdef inline int _order(const Entry* entry, const uint8_t* key, size_t size) noexcept nogil:
    """Compare the entry's key with the key; no entry is a bound below all keys."""
    return compare(key_of(entry), entry.key_size, key, size) if entry != NULL else -1


cdef inline const Entry* _item_entry(const Page* page, bint is_leaf, uint32_t i) noexcept nogil:
    return <const Entry*> page.items[i] if is_leaf else (<const Page*> page.items[i]).low


cdef inline uint32_t _count_less(const Page* page, uint64_t prefix) noexcept nogil:
    """Count the lesser prefixes, without an unpredictable branch."""
    cdef const uint64_t* base = &page.prefixes[0]
    cdef uint32_t left = page.count, half
    if left == 0:
        return 0
    while left > 1:
        half = left >> 1
        base += half * (base[half - 1] < prefix)
        left -= half
    return <uint32_t> (base - page.prefixes) + (base[0] < prefix)


cdef inline uint32_t _settle(
    const Page* page, bint is_leaf, uint32_t place, uint64_t prefix, const uint8_t* key,
    size_t size, bint* found,
) noexcept nogil:
    """Return the first item whose key is not less; so many items have smaller prefixes."""
    cdef uint32_t end = place, middle
    cdef int order
    found[0] = False
    while end < page.count and page.prefixes[end] == prefix:
        end += 1
    while place < end:
        middle = (place + end) >> 1
        order = _order(_item_entry(page, is_leaf, middle), key, size)
        if order == 0:
            found[0] = True
            return middle
        if order < 0:
            place = middle + 1
        else:
            end = middle
    return place


cdef inline uint32_t _find(
    const Page* page, bint is_leaf, const uint8_t* key, size_t size, bint* found
) noexcept nogil:
    cdef uint64_t prefix = _prefix(key, size, page.skip)
    return _settle(page, is_leaf, _count_less(page, prefix), prefix, key, size, found)


cdef inline uint32_t _child_place(
    const Page* page, const uint8_t* key, size_t size
) noexcept nogil:
    """Return the child that the key belongs to; the key is not below the page's bound, nor the
    first child's."""
    cdef bint found
    cdef uint32_t place = _find(page, False, key, size, &found)
    return place if found else place - 1


cdef Page* _leaf_of(
    const Tree* tree, const uint8_t* key, size_t size, Page** parent
) noexcept nogil:
    """Return the leaf that the key belongs to, and the page above; NULL if there is none."""
    cdef Page* page = tree.root
    cdef int level
    parent[0] = NULL
    for level in range(1, tree.height):
        parent[0] = page
        page = <Page*> page.items[_child_place(page, key, size)]
    return page


cdef void start_tree(Tree* tree, Page* page) noexcept nogil:
    page.count = 0
    page.skip = STREAM_BYTES
    page.low = page.high = NULL
    page.next = page.previous = NULL
    tree.root = tree.first = tree.last = page
    tree.height = 1


cdef void first_place(const Tree* tree, Place* place) noexcept nogil:
    place.leaf = tree.first if tree.first != NULL and tree.first.count else NULL
    place.at = 0


cdef void last_place(const Tree* tree, Place* place) noexcept nogil:
    place.leaf = tree.last if tree.last != NULL and tree.last.count else NULL
    place.at = place.leaf.count - 1 if place.leaf != NULL else 0


cdef void find_place(
    const Tree* tree, const uint8_t* key, size_t size, Place* place
) noexcept nogil:
    cdef bint found
    cdef Page* parent
    place.leaf = NULL
    place.at = 0
    if tree.root == NULL:
        return
    place.leaf = _leaf_of(tree, key, size, &parent)
    place.at = _find(place.leaf, True, key, size, &found)
    if place.at >= place.leaf.count:
        place.leaf = place.leaf.next
        place.at = 0


cdef inline void _prefetch_page(const Page* page) noexcept nogil:
    cdef const uint8_t* line = <const uint8_t*> page
    while line < <const uint8_t*> page + sizeof(Page):
        __builtin_prefetch(line)
        line += LINE_BYTES


cdef void find_group(
    const Tree* tree, Page** finger, Search* searches, int count
) noexcept nogil:
    cdef Page* parent = finger[0]
    cdef const Page* leaf = NULL
    cdef Search* search
    cdef const uint8_t* entry
    cdef bint found
    cdef uint32_t child = 0
    cdef int i
    for i in range(count):
        search = &searches[i]
        if parent == NULL or (
            parent.high != NULL and _order(parent.high, search.key, search.size) <= 0
        ):
            search.leaf = _leaf_of(tree, search.key, search.size, &parent)
            child = 0
        elif leaf != NULL and child and (
            child == parent.count
            or _prefix(search.key, search.size, parent.skip) < parent.prefixes[child]
        ):
            search.leaf = searches[i - 1].leaf  # as most of a batch's keys
        else:
            child = _child_place(parent, search.key, search.size)
            search.leaf = <Page*> parent.items[child]
            child += 1
        if search.leaf != leaf:
            leaf = search.leaf
            _prefetch_page(leaf)
    finger[0] = parent
    for i in range(count):
        search = &searches[i]
        leaf = search.leaf
        search.prefix = _prefix(search.key, search.size, leaf.skip)
        search.place = _count_less(leaf, search.prefix)
        if search.place < leaf.count and leaf.prefixes[search.place] == search.prefix:
            entry = <const uint8_t*> leaf.items[search.place]
            __builtin_prefetch(entry)
            __builtin_prefetch(entry + LINE_BYTES)
    for i in range(count):
        search = &searches[i]
        search.place = _settle(
            search.leaf, True, search.place, search.prefix, search.key, search.size, &found
        )
        search.entry = <Entry*> search.leaf.items[search.place] if found else NULL


cdef int _path_to(const Tree* tree, const Page* leaf, Page** path, uint32_t* places) noexcept nogil:
    """Return how many pages are above a leaf, with the pages from the root on and the place of the
    next one in each."""
    cdef Page* page = tree.root
    cdef int level
    for level in range(tree.height - 1):
        path[level] = page
        places[level] = 0
        if leaf.low != NULL:
            places[level] = _child_place(page, key_of(leaf.low), leaf.low.key_size)
        page = <Page*> page.items[places[level]]
    return tree.height - 1


cdef int pages_to_put(const Tree* tree, const Search* search) noexcept nogil:
    cdef Page* path[MOST_LEVELS]
    cdef uint32_t places[MOST_LEVELS]
    cdef int level
    if search.leaf.count < PAGE_ITEMS:
        return 0
    path[0] = tree.root
    level = _path_to(tree, search.leaf, path, places)
    while level and path[level - 1].count == PAGE_ITEMS:
        level -= 1
    return tree.height - level + (level == 0)


cdef inline void _put_item(Page* page, uint32_t place, uint64_t prefix, void* item) noexcept nogil:
    cdef size_t behind = (page.count - place) * sizeof(uint64_t)
    memmove(&page.prefixes[place + 1], &page.prefixes[place], behind)
    memmove(&page.items[place + 1], &page.items[place], behind)
    page.prefixes[place] = prefix
    page.items[place] = item
    page.count += 1


cdef void put_entry(
    Tree* tree, Search* searches, int count, Entry* entry, Page** pages
) noexcept nogil:
    cdef bint found
    cdef Page* leaf
    cdef uint32_t place
    cdef uint64_t prefix
    if searches.leaf.count == PAGE_ITEMS:
        _split_leaf(tree, searches, count, entry, pages)
    leaf = searches.leaf
    prefix = _prefix(searches.key, searches.size, leaf.skip)
    place = leaf.count
    if place and leaf.prefixes[place - 1] >= prefix:  # not where keys only ascend
        place = _settle(
            leaf, True, _count_less(leaf, prefix), prefix, searches.key, searches.size, &found
        )
    _put_item(leaf, place, prefix, entry)
    searches.entry = entry


cdef void _split_leaf(
    Tree* tree, Search* searches, int count, const Entry* entry, Page** pages
) noexcept nogil:
    cdef Page* leaf = searches.leaf
    cdef Page* path[MOST_LEVELS]
    cdef uint32_t places[MOST_LEVELS]
    cdef int depth = _path_to(tree, leaf, path, places), i
    cdef bint found
    cdef Page* fresh = pages[0]
    if _find(leaf, True, searches.key, searches.size, &found) == PAGE_ITEMS:
        _cut(leaf, True, PAGE_ITEMS, fresh, entry)  # keys that ascend fill their pages
    else:
        _cut(leaf, True, PAGE_ITEMS // 2, fresh, <const Entry*> leaf.items[PAGE_ITEMS // 2])
    fresh.next = leaf.next
    fresh.previous = leaf
    leaf.next = fresh
    if fresh.next != NULL:
        fresh.next.previous = fresh
    else:
        tree.last = fresh
    for i in range(count):
        if searches[i].leaf == leaf and _order(
            fresh.low, searches[i].key, searches[i].size
        ) <= 0:
            searches[i].leaf = fresh
    _put_page(tree, path, places, depth, fresh, &pages[1])


cdef void _put_page(
    Tree* tree, Page** path, const uint32_t* places, int depth, Page* child, Page** pages
) noexcept nogil:
    """Insert a new page after the one that the path leads to."""
    cdef Page* page
    cdef Page* fresh
    cdef uint32_t place
    while depth:
        depth -= 1
        page = path[depth]
        place = places[depth] + 1
        if page.count < PAGE_ITEMS:
            _put_child(page, place, child)
            return
        fresh = pages[0]
        pages += 1
        if place == PAGE_ITEMS:
            _cut(page, False, PAGE_ITEMS, fresh, child.low)
            _put_child(fresh, 0, child)
        else:
            _cut(
                page, False, PAGE_ITEMS // 2, fresh,
                _item_entry(page, False, PAGE_ITEMS // 2),
            )
            if place <= PAGE_ITEMS // 2:
                _put_child(page, place, child)
            else:
                _put_child(fresh, place - PAGE_ITEMS // 2, child)
        child = fresh
    fresh = pages[0]
    fresh.count = 0
    fresh.skip = STREAM_BYTES
    fresh.low = fresh.high = NULL
    fresh.next = fresh.previous = NULL
    _put_item(fresh, 0, 0, tree.root)
    _put_child(fresh, 1, child)
    tree.root = fresh
    tree.height += 1


cdef void _put_child(Page* page, uint32_t place, Page* child) noexcept nogil:
    """Insert a child other than the very first, which has no lower bound."""
    _put_item(page, place, _prefix(key_of(child.low), child.low.key_size, page.skip), child)


cdef void _cut(
    Page* page, bint is_leaf, uint32_t place, Page* fresh, const Entry* low
) noexcept nogil:
    """Move the items from a place on to a new page, which begins with the key of `low`."""
    cdef size_t moved = (page.count - place) * sizeof(uint64_t)
    memcpy(fresh.prefixes, &page.prefixes[place], moved)
    memcpy(fresh.items, &page.items[place], moved)
    fresh.count = page.count - place
    fresh.skip = page.skip
    fresh.next = fresh.previous = NULL
    fresh.low = low
    fresh.high = page.high
    page.count = place
    page.high = low
    _tighten(page, is_leaf)
    _tighten(fresh, is_leaf)


cdef void _tighten(Page* page, bint is_leaf) noexcept nogil:
    """Use prefixes after the bounds' common prefix, if the present ones do not distinguish the
    keys."""
    cdef uint32_t i = 1
    cdef size_t shared
    cdef const Entry* entry
    if page.low == NULL or page.high == NULL:
        return
    while i < page.count and page.prefixes[i - 1] != page.prefixes[i]:
        i += 1
    if i >= page.count:
        return
    shared = shared_prefix(
        key_of(page.low), page.low.key_size, key_of(page.high), page.high.key_size
    )
    if shared <= page.skip:
        return
    page.skip = <uint32_t> shared
    for i in range(page.count):
        entry = _item_entry(page, is_leaf, i)
        page.prefixes[i] = _prefix(key_of(entry), entry.key_size, shared)


cdef uint64_t check_tree(const Tree* tree) except? 0xFFFFFFFF:
    cdef const Page* previous = NULL
    cdef const Page* leaf = tree.first
    cdef uint64_t entries = 0
    if tree.root == NULL:
        return 0
    _check_page(tree.root, tree.height - 1)
    while leaf != NULL:
        if leaf.previous != previous or (previous != NULL and leaf.low != previous.high):
            raise AssertionError("leaves that do not follow each other")
        entries += leaf.count
        previous = leaf
        leaf = leaf.next
    if previous != tree.last:
        raise AssertionError("the last leaf is another one")
    return entries


cdef int _check_page(const Page* page, int level) except -1:
    cdef uint32_t i
    cdef const Entry* entry
    cdef const Entry* before = NULL
    cdef const Page* child
    if page.count > PAGE_ITEMS or (page.count == 0 and (level or page.low != NULL)):
        raise AssertionError(f"a page of {page.count} items")
    for i in range(page.count):
        entry = _item_entry(page, level == 0, i)
        if entry == NULL:
            if i or level == 0 or page.low != NULL or page.prefixes[i]:
                raise AssertionError("only the first page has no bound below")
        else:
            _check_item(page, i, entry, before)
        before = entry
        if level:
            child = <const Page*> page.items[i]
            _check_page(child, level - 1)
            if child.high != (
                _item_entry(page, False, i + 1) if i + 1 < page.count else page.high
            ):
                raise AssertionError("a page that does not end where the next one begins")
    return 0


cdef int _check_item(
    const Page* page, uint32_t i, const Entry* entry, const Entry* before
) except -1:
    cdef const uint8_t* key = key_of(entry)
    if _order(page.low, key, entry.key_size) > 0 or (
        page.high != NULL and _order(page.high, key, entry.key_size) <= 0
    ):
        raise AssertionError("a key outside its page's bounds")
    if _order(before, key, entry.key_size) >= 0:
        raise AssertionError("keys out of order")
    if page.prefixes[i] != _prefix(key, entry.key_size, page.skip) or (
        i and page.prefixes[i - 1] > page.prefixes[i]
    ):
        raise AssertionError("another prefix than the key's")
    return 0
