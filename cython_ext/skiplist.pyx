"""Ordered nodes, a list per stream: searched for one key, or for several at once.

A link holds the prefix of the key it leads to, so most steps compare without visiting a node. What
a search then costs is waiting for memory: in a full memtable nearly each step is a cache miss. So
a group of keys goes down together, each a step in turn, and asks for the memory of its next step
meanwhile. What the group does not see is its own insertions; a finger knows those.

Nodes are never moved or taken out. Whoever makes them fills in all but their links.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from cython_ext.coding cimport compare, shared_prefix

cdef extern from *:
    uint64_t __builtin_bswap64(uint64_t) nogil
    void __builtin_prefetch(const void*) nogil

cdef enum:
    STREAM_BYTES = 2  # of a stored key, in front
    PREFIX_BYTES = 8
    MOST_COMMON_BYTES = 256  # a head is small beside what is reserved for an entry


cdef inline uint64_t _prefix(
    const StreamList* stream_list, const uint8_t* key, size_t size
) noexcept nogil:
    """Eight bytes, big-endian and zero-padded, behind what the keys of the list have in common.
    Those that do not begin so come before all others, or behind them."""
    cdef const Node* head = stream_list.head
    cdef size_t common = head.key_size, i
    cdef uint64_t prefix = 0
    cdef int order
    if common > STREAM_BYTES:
        order = memcmp(key, key_of(head), min(size, common))
        if order:
            return 0 if order < 0 else <uint64_t> -1
    if size >= common + PREFIX_BYTES:
        memcpy(&prefix, key + common, PREFIX_BYTES)
        return __builtin_bswap64(prefix)
    for i in range(common, size):
        prefix |= (<uint64_t> key[i]) << (56 - 8 * (i - common))
    return prefix


cdef size_t head_key_size(
    const uint8_t* least, size_t least_size, const uint8_t* greatest, size_t greatest_size
) noexcept nogil:
    cdef size_t common = shared_prefix(least, least_size, greatest, greatest_size)
    cdef size_t shorter = min(least_size, greatest_size)
    # A whole prefix is left of either: keys of one batch may be alike by chance.
    common = min(common, shorter - min(shorter, <size_t> PREFIX_BYTES))
    return max(<size_t> STREAM_BYTES, min(common, <size_t> MOST_COMMON_BYTES))


cdef inline int _order(
    const Link* link, uint64_t prefix, const uint8_t* key, size_t size
) noexcept nogil:
    """Sign of the linked node's key against the key; unequal prefixes never visit the node."""
    if link.prefix != prefix:
        return -1 if link.prefix < prefix else 1
    return compare(key_of(link.node), link.node.key_size, key, size)


cdef size_t head_bytes(int height) noexcept nogil:
    return sizeof(Node) + (height - 1) * sizeof(Link)


cdef void start_path(const StreamList* stream_list, Node** path) noexcept nogil:
    cdef int level
    for level in range(MAX_HEIGHT):
        path[level] = stream_list.head


cdef inline int _level_to_start(
    const StreamList* stream_list, Node* const* path, uint64_t prefix, const uint8_t* key,
    size_t size,
) noexcept nogil:
    """As high as the distance from the finger demands."""
    cdef int level = 0
    cdef Link* link
    while level + 1 < stream_list.height:
        link = &path[level].next[level]
        if link.node == NULL or _order(link, prefix, key, size) >= 0:
            break
        level += 1
    return level


cdef Node* find_node(
    const StreamList* stream_list, Node** path, const uint8_t* key, size_t size
) noexcept nogil:
    """The first node that is not less than the key; the path is the way to it, and serves the
    next search as a finger if keys ascend. Invariant: on each level the path stands at the last
    node less than the key searched before. So a node reached by a step on one level is ahead of
    the path on all lower ones."""
    cdef uint64_t prefix = _prefix(stream_list, key, size)
    cdef int level = _level_to_start(stream_list, path, prefix, key, size)
    cdef Node* node = path[level]
    cdef Link* link
    cdef bint moved = False
    while True:
        link = &node.next[level]
        while link.node != NULL and _order(link, prefix, key, size) < 0:
            node = link.node
            link = &node.next[level]
            moved = True
        path[level] = node
        if level == 0:
            return link.node
        level -= 1
        if not moved:
            node = path[level]


cdef void find_group(
    const StreamList* stream_list, const Finger* finger, Search* searches, int count
) noexcept nogil:
    cdef Search* going[GROUP]
    cdef Search* search
    cdef int i, left = count
    for i in range(count):
        search = &searches[i]
        going[i] = search
        search.prefix = _prefix(stream_list, search.key, search.size)
        search.top = _level_to_start(
            stream_list, finger.reached, search.prefix, search.key, search.size
        )
        search.level = search.top
        search.node = finger.reached[search.top]
        search.awaited = NULL
        __builtin_prefetch(&search.node.next[search.level])
    while left:
        i = 0
        while i < left:
            if _go_on(going[i]):
                i += 1
            else:
                left -= 1
                going[i] = going[left]


cdef inline bint _go_on(Search* search) noexcept nogil:
    """Down, and on by one node, whose memory is asked for; or only that is asked for which the
    comparison needs. False: the search is over."""
    cdef Link* link
    while True:
        link = &search.node.next[search.level]
        if link.node != NULL and link.prefix <= search.prefix:
            if link.prefix == search.prefix and search.awaited != link.node:
                search.awaited = link.node
                __builtin_prefetch(link.node)
                __builtin_prefetch(<uint8_t*> link.node + 64)
                return True
            if link.prefix < search.prefix or _order(
                link, search.prefix, search.key, search.size
            ) < 0:
                search.node = link.node
                __builtin_prefetch(&link.node.next[search.level])
                return True
        search.path[search.level] = search.node
        if search.level == 0:
            return False
        search.level -= 1


cdef Node* found_node(const Search* search) noexcept nogil:
    cdef Link* link = &search.path[0].next[0]
    if link.node == NULL or _order(link, search.prefix, search.key, search.size):
        return NULL
    return link.node


cdef void start_finger(const StreamList* stream_list, Finger* finger) noexcept nogil:
    start_path(stream_list, finger.searched)
    start_path(stream_list, finger.reached)


cdef inline Node* _reach(Finger* finger, const Search* search, int level) noexcept nogil:
    """Nodes that were put in since the search lie behind the same node as the keys that found it;
    where this key found another one, there are none between."""
    if level <= search.top and finger.searched[level] != search.path[level]:
        finger.searched[level] = search.path[level]
        finger.reached[level] = search.path[level]
    return finger.reached[level]


cdef Node* node_at(Finger* finger, const Search* search) noexcept nogil:
    cdef Link* link = &_reach(finger, search, 0).next[0]
    if link.node == NULL or _order(link, search.prefix, search.key, search.size):
        return NULL
    return link.node


cdef void insert_node(
    StreamList* stream_list, Finger* finger, const Search* search, Node* node
) noexcept nogil:
    cdef Link* link
    cdef int level
    if node.height > stream_list.height:
        stream_list.height = node.height
    for level in range(node.height):
        link = &_reach(finger, search, level).next[level]
        node.next[level] = link[0]
        link.node = node
        link.prefix = search.prefix
        finger.reached[level] = node


cdef void settle_finger(
    const StreamList* stream_list, Finger* finger, const Search* search
) noexcept nogil:
    cdef int level
    for level in range(stream_list.height):
        finger.searched[level] = _reach(finger, search, level)


cdef int check_levels(const StreamList* stream_list) except -1:
    cdef int level
    cdef Link* link
    cdef Link* following
    for level in range(stream_list.height):
        link = &stream_list.head.next[level]
        while link.node != NULL:
            following = &link.node.next[level]
            if link.node.height <= level:
                raise AssertionError(f"a node of height {link.node.height} on level {level}")
            if link.prefix != _prefix(stream_list, key_of(link.node), link.node.key_size):
                raise AssertionError("a link has another prefix than its node's key")
            if following.node != NULL and compare(
                key_of(link.node), link.node.key_size,
                key_of(following.node), following.node.key_size,
            ) >= 0:
                raise AssertionError("keys out of order")
            link = following
    return 0
