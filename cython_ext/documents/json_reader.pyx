"""JSON text as attribute-value pairs, without a Python object per value.

The text is read as RFC 8259 says. Libraries that make objects of it keep the last of two equal
names, and round whole numbers beyond 64 bits; here both are faults.

A value is a tag and bytes that are equal exactly if the values are:

- Numbers whose value is whole and fits into 64 bits are one kind, ``1`` and ``1.0`` alike. All
  others are doubles. -0 is 0.
- An array as a set has its elements sorted, each once. As it stands it has them in order.
- An object inside an array has its members sorted by name.
"""

cimport cython
from libc.math cimport isinf
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memset

from lsmstate.cython_ext.base.coding cimport Buffer, load_u32, put_bytes, put_u32, release, reserve
from lsmstate.cython_ext.base.compression cimport xxh3
from lsmstate.cython_ext.documents.attribute_values cimport AttributeValues, Documents, mixed

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* s, char** end, void* overflow) except? -1.0

cdef enum:
    NULL_VALUE = 0
    FALSE_VALUE = 1
    TRUE_VALUE = 2
    WHOLE = 3
    WHOLE_ABOVE = 4  # of int64
    DOUBLE = 5
    TEXT = 6
    EMPTY_OBJECT = 7
    ARRAY = 8
    OBJECT = 9

cdef enum:
    NOT_JSON = 1
    NOT_AN_OBJECT = 2
    NAME_TWICE = 3
    NUMBER_TOO_LARGE = 4
    LONE_SURROGATE = 5
    TOO_DEEP = 6

cdef enum:
    MOST_DEPTH = 500
    FEW = 24  # sorted by insertion

#: What is wrong with a document, by its fault.
FAULTS = {
    NOT_JSON: "is not JSON",
    NOT_AN_OBJECT: "is no JSON object",
    NAME_TWICE: "has a name or a path twice",
    NUMBER_TOO_LARGE: "has a whole number beyond 64 bits, or a number beyond a double",
    LONE_SURROGATE: "has half of a surrogate pair",
    TOO_DEEP: f"is nested deeper than {MOST_DEPTH} levels",
}


cdef struct Span:
    const uint8_t* at
    uint64_t size

cdef struct Name:
    uint64_t hash
    uint64_t at  # among the names
    uint64_t size


@cython.final
cdef class JsonReader:
    """Reads documents as pairs of ``values``.

    ``sets``: whether arrays are compared as sets. ``nulls``: whether a null is a value; an
    attribute that is null is left out otherwise.
    """

    cdef AttributeValues values
    cdef bint sets
    cdef bint nulls
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int depth
    cdef Buffer path
    cdef Buffer value
    cdef Buffer names  # of the objects that are being read
    cdef Buffer name_list  # Name[] of them
    cdef Buffer spans
    cdef Buffer sorted
    cdef Buffer number

    def __cinit__(self, AttributeValues values not None, bint sets=True, bint nulls=True):
        self.values = values
        self.sets = sets
        self.nulls = nulls
        memset(&self.path, 0, sizeof(Buffer))
        memset(&self.value, 0, sizeof(Buffer))
        memset(&self.names, 0, sizeof(Buffer))
        memset(&self.name_list, 0, sizeof(Buffer))
        memset(&self.spans, 0, sizeof(Buffer))
        memset(&self.sorted, 0, sizeof(Buffer))
        memset(&self.number, 0, sizeof(Buffer))

    def __init__(self, values, sets=True, nulls=True):
        pass

    def __dealloc__(self):
        release(&self.path)
        release(&self.value)
        release(&self.names)
        release(&self.name_list)
        release(&self.spans)
        release(&self.sorted)
        release(&self.number)

    def read(self, column):
        """Return the documents of an Arrow array of text, one for each of its items; a null has no
        pairs. Cost: about a microsecond for 15 attributes."""
        cdef Documents found = Documents(self.values)
        cdef const int64_t[::1] offsets
        cdef const uint8_t[::1] data
        cdef Py_ssize_t i, n = len(column)
        cdef size_t begin
        cdef int fault
        if n == 0:
            return found
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.uint8)
        cdef const uint8_t[::1] is_valid = valid
        _, ends, text = column.buffers()
        width = np.int64 if str(column.type).startswith("large") else np.int32
        whole = np.frombuffer(ends, width)[column.offset : column.offset + n + 1]
        offsets = np.ascontiguousarray(whole, np.int64)
        data = np.frombuffer(text, np.uint8) if text is not None else np.empty(0, np.uint8)
        if offsets[0] < 0 or offsets[n] > data.shape[0]:
            raise InvalidArgumentError(f"text of {offsets[n]} bytes in {data.shape[0]}")
        for i in range(n):
            begin = found.pairs.size
            fault = 0
            if is_valid[i]:
                if offsets[i] > offsets[i + 1]:
                    raise InvalidArgumentError(f"text {i} ends before it begins")
                fault = NOT_JSON
                if offsets[i] < offsets[i + 1]:
                    self.at = &data[offsets[i]]
                    self.end = self.at + (offsets[i + 1] - offsets[i])
                    fault = self.document(found)
            if not fault:
                fault = sort_pairs(found, begin)
            found.end_document(<uint8_t> fault, begin)
        return found

    cdef int document(self, Documents found) except -1:
        """Read one document. Return its fault."""
        cdef int fault
        self.depth = 0
        self.path.size = self.names.size = self.name_list.size = self.spans.size = 0
        self.skip()
        if self.at == self.end:
            return NOT_JSON
        if self.at[0] != c"{":
            self.value.size = 0
            fault = self.any_value(&self.value)
            if fault == 0 and self.is_at_end():
                return NOT_AN_OBJECT
            return fault if fault else NOT_JSON
        self.at += 1
        fault = self.members(found)
        if fault:
            return fault
        return 0 if self.is_at_end() else NOT_JSON

    cdef bint is_at_end(self) noexcept:
        self.skip()
        return self.at == self.end

    cdef void skip(self) noexcept:
        while self.at < self.end and self.at[0] in (c" ", c"\n", c"\r", c"\t"):
            self.at += 1

    cdef bint takes(self, uint8_t byte) noexcept:
        """Whether the next byte that is no space is this one, which is then read."""
        self.skip()
        if self.at < self.end and self.at[0] == byte:
            self.at += 1
            return True
        return False

    cdef int members(self, Documents found) except -1:
        """Read an object's members, whose brace is read, as attributes below the path."""
        cdef size_t path_size = self.path.size
        cdef size_t names_begin = self.names.size
        cdef size_t list_begin = self.name_list.size
        cdef size_t name_at
        cdef uint64_t pair
        cdef int64_t attribute
        cdef int fault
        cdef bint is_leaf
        cdef uint8_t first
        if self.takes(c"}"):
            return 0
        self.depth += 1
        if self.depth > MOST_DEPTH:
            return TOO_DEEP
        while True:
            name_at = self.names.size
            fault = self.name(&self.names)
            if fault:
                return fault
            self.add_name(name_at)
            if self.depth > 1:
                put_bytes(&self.path, <const uint8_t*> b".", 1)
            put_bytes(&self.path, self.names.data + name_at, self.names.size - name_at)
            self.skip()
            if self.at == self.end:
                return NOT_JSON
            first = self.at[0]
            is_leaf = True
            self.value.size = 0
            if first == c"{":
                self.at += 1
                if self.takes(c"}"):
                    put_tag(&self.value, EMPTY_OBJECT)
                else:
                    is_leaf = False
                    fault = self.members(found)
            else:
                fault = self.any_value(&self.value)
            if fault:
                return fault
            if is_leaf and (self.nulls or self.value.data[0] != NULL_VALUE):
                attribute = self.values.attribute_of(path_bytes(&self.path), self.path.size)
                if self.values.attribute(<uint32_t> attribute).is_wanted:
                    pair = <uint64_t> self.values.value_of(
                        <uint32_t> attribute, self.value.data, self.value.size
                    )
                    pair |= <uint64_t> attribute << 32
                    put_bytes(&found.pairs, &pair, 8)
            self.path.size = path_size
            if self.takes(c","):
                continue
            if self.takes(c"}"):
                break
            return NOT_JSON
        if self.has_name_twice(list_begin):
            return NAME_TWICE
        self.names.size = names_begin
        self.name_list.size = list_begin
        self.depth -= 1
        return 0

    cdef int name(self, Buffer* into) except -1:
        """Read a member's name and its colon."""
        cdef int fault
        if not self.takes(c'"'):
            return NOT_JSON
        fault = self.text(into)
        if fault:
            return fault
        return 0 if self.takes(c":") else NOT_JSON

    cdef int add_name(self, size_t at) except -1:
        cdef Name added
        added.at = at
        added.size = self.names.size - at
        added.hash = short_hash(self.names.data + at, added.size)
        put_bytes(&self.name_list, &added, sizeof(Name))
        return 0

    cdef bint has_name_twice(self, size_t begin) noexcept:
        cdef Name* names = <Name*> (self.name_list.data + begin)
        cdef size_t n = (self.name_list.size - begin) // sizeof(Name)
        cdef size_t i, j
        if n > FEW:
            qsort(names, n, sizeof(Name), by_hash)
        for i in range(1, n):
            j = i
            while j > 0:
                j -= 1
                if names[j].hash == names[i].hash:
                    if names[j].size == names[i].size and memcmp(
                        self.names.data + names[j].at, self.names.data + names[i].at, names[i].size
                    ) == 0:
                        return True
                elif n > FEW:
                    break
        return False

    cdef int any_value(self, Buffer* into) except -1:
        """Append the next value."""
        self.skip()
        if self.at == self.end:
            return NOT_JSON
        cdef uint8_t first = self.at[0]
        if first == c'"':
            self.at += 1
            put_tag(into, TEXT)
            return self.text(into)
        if first == c"-" or c"0" <= first <= c"9":
            return self.a_number(into)
        if first == c"[" or first == c"{":
            self.at += 1
            self.depth += 1
            if self.depth > MOST_DEPTH:
                return TOO_DEEP
            fault = self.nested(into, first == c"{")
            self.depth -= 1
            return fault
        if self.reads(b"null", 4):
            put_tag(into, NULL_VALUE)
        elif self.reads(b"true", 4):
            put_tag(into, TRUE_VALUE)
        elif self.reads(b"false", 5):
            put_tag(into, FALSE_VALUE)
        else:
            return NOT_JSON
        return 0

    cdef bint reads(self, const char* word, size_t size) noexcept:
        if <size_t> (self.end - self.at) < size or memcmp(self.at, word, size):
            return False
        self.at += size
        return True

    cdef int nested(self, Buffer* into, bint is_object) except -1:
        """Append an array, or an object inside one. Each element has its size in front."""
        cdef size_t spans_begin = self.spans.size
        cdef size_t begin, size_at
        cdef uint64_t place
        cdef int fault
        put_tag(into, OBJECT if is_object else ARRAY)
        begin = into.size
        if self.takes(c"}" if is_object else c"]"):
            return 0
        while True:
            place = into.size
            put_bytes(&self.spans, &place, 8)
            if is_object:
                put_u32(into, 0)
                fault = self.name(into)
                if fault:
                    return fault
                set_size(into, place)
            size_at = into.size
            put_u32(into, 0)
            fault = self.any_value(into)
            if fault:
                return fault
            set_size(into, size_at)
            if self.takes(c","):
                continue
            if self.takes(c"}" if is_object else c"]"):
                break
            return NOT_JSON
        if is_object or self.sets:
            fault = self.sort_elements(into, begin, spans_begin, is_object)
        self.spans.size = spans_begin
        return fault

    cdef int sort_elements(
        self, Buffer* into, size_t begin, size_t spans_begin, bint is_object
    ) except -1:
        """Sort what was appended; each element of a set once, each name of an object only once."""
        cdef size_t n = (self.spans.size - spans_begin) // 8
        cdef const uint64_t* places = <const uint64_t*> (self.spans.data + spans_begin)
        cdef Buffer list_
        cdef Span* spans
        cdef Span* before
        cdef size_t i
        cdef uint64_t name_size
        memset(&list_, 0, sizeof(Buffer))
        try:
            reserve(&list_, n * sizeof(Span))
            spans = <Span*> list_.data
            for i in range(n):
                spans[i].at = into.data + places[i]
                spans[i].size = (places[i + 1] if i + 1 < n else into.size) - places[i]
            qsort(spans, n, sizeof(Span), by_bytes)
            self.sorted.size = 0
            before = NULL
            for i in range(n):
                if before != NULL:
                    if is_object:
                        name_size = 4 + load_u32(before.at)
                        if load_u32(spans[i].at) + 4 == name_size and (
                            memcmp(before.at, spans[i].at, name_size) == 0
                        ):
                            return NAME_TWICE
                    elif before.size == spans[i].size and (
                        memcmp(before.at, spans[i].at, before.size) == 0
                    ):
                        continue
                before = &spans[i]
                put_bytes(&self.sorted, before.at, before.size)
            memcpy(into.data + begin, self.sorted.data, self.sorted.size)
            into.size = begin + self.sorted.size
        finally:
            release(&list_)
        return 0

    cdef int a_number(self, Buffer* into) except -1:
        cdef const uint8_t* begin = self.at
        cdef bint is_negative = self.at[0] == c"-"
        cdef bint is_written_whole = True
        cdef bint is_large = False
        cdef uint64_t whole = 0
        cdef uint64_t digit
        cdef double number
        if is_negative:
            self.at += 1
        if self.at == self.end or not c"0" <= self.at[0] <= c"9":
            return NOT_JSON
        if self.at[0] == c"0":
            self.at += 1
        else:
            while self.at < self.end and c"0" <= self.at[0] <= c"9":
                digit = self.at[0] - c"0"
                if whole > (<uint64_t> -1 - digit) // 10:
                    is_large = True
                else:
                    whole = whole * 10 + digit
                self.at += 1
        if self.at < self.end and self.at[0] == c".":
            is_written_whole = False
            self.at += 1
            if not self.digits():
                return NOT_JSON
        if self.at < self.end and self.at[0] in (c"e", c"E"):
            is_written_whole = False
            self.at += 1
            if self.at < self.end and self.at[0] in (c"+", c"-"):
                self.at += 1
            if not self.digits():
                return NOT_JSON
        if is_written_whole:
            if is_large or (is_negative and whole > <uint64_t> 1 << 63):
                return NUMBER_TOO_LARGE
            put_whole(into, is_negative, whole)
            return 0
        self.number.size = 0
        put_bytes(&self.number, begin, self.at - begin)
        put_bytes(&self.number, <const uint8_t*> b"\0", 1)
        number = PyOS_string_to_double(<const char*> self.number.data, NULL, NULL)
        if isinf(number):
            return NUMBER_TOO_LARGE
        put_double(into, number)
        return 0

    cdef bint digits(self) noexcept:
        cdef const uint8_t* begin = self.at
        while self.at < self.end and c"0" <= self.at[0] <= c"9":
            self.at += 1
        return self.at > begin

    cdef int text(self, Buffer* into) except -1:
        """Append a text whose quotation mark is read, as UTF-8."""
        cdef const uint8_t* at
        cdef const uint8_t* end = self.end
        cdef int fault
        while True:
            at = self.at
            while at < end and at[0] >= 0x20 and at[0] != c'"' and at[0] != c"\\":
                at += 1
            put_bytes(into, self.at, at - self.at)
            self.at = at
            if at == end or at[0] < 0x20:
                return NOT_JSON
            self.at += 1
            if at[0] == c'"':
                return 0
            fault = self.escape(into)
            if fault:
                return fault

    cdef int escape(self, Buffer* into) except -1:
        cdef uint8_t byte
        cdef int64_t code, low
        if self.at == self.end:
            return NOT_JSON
        byte = self.at[0]
        self.at += 1
        if byte == c"u":
            code = self.four_digits()
            if code < 0:
                return NOT_JSON
            if 0xD800 <= code < 0xE000:
                if code >= 0xDC00 or self.end - self.at < 6 or (
                    self.at[0] != c"\\" or self.at[1] != c"u"
                ):
                    return LONE_SURROGATE
                self.at += 2
                low = self.four_digits()
                if low < 0:
                    return NOT_JSON
                if not 0xDC00 <= low < 0xE000:
                    return LONE_SURROGATE
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            put_code_point(into, <uint32_t> code)
            return 0
        if byte == c"b":
            byte = 8
        elif byte == c"f":
            byte = 12
        elif byte == c"n":
            byte = 10
        elif byte == c"r":
            byte = 13
        elif byte == c"t":
            byte = 9
        elif byte != c'"' and byte != c"\\" and byte != c"/":
            return NOT_JSON
        put_bytes(into, &byte, 1)
        return 0

    cdef int64_t four_digits(self) noexcept:
        cdef int64_t code = 0
        cdef int i
        cdef uint8_t byte
        if self.end - self.at < 4:
            return -1
        for i in range(4):
            byte = self.at[i]
            if c"0" <= byte <= c"9":
                byte -= c"0"
            elif c"a" <= byte <= c"f":
                byte -= c"a" - 10
            elif c"A" <= byte <= c"F":
                byte -= c"A" - 10
            else:
                return -1
            code = code << 4 | byte
        self.at += 4
        return code


cdef uint64_t short_hash(const uint8_t* data, size_t size) noexcept nogil:
    """A hash that is fast for names of up to 16 bytes."""
    cdef uint64_t first = 0, last = 0
    if size > 16:
        return xxh3(data, size)
    if size >= 8:
        memcpy(&first, data, 8)
        memcpy(&last, data + size - 8, 8)
    elif size:
        memcpy(&first, data, size)
    return mixed(first + size) + last


cdef const uint8_t* path_bytes(const Buffer* path) noexcept nogil:
    """The path's bytes; of an empty one any."""
    if path.data == NULL:
        return <const uint8_t*> path  # of which nothing is read
    return path.data


cdef int put_tag(Buffer* into, uint8_t tag) except -1:
    return put_bytes(into, &tag, 1)


cdef void set_size(Buffer* into, size_t at) noexcept nogil:
    """Write the size of what follows a place of four bytes."""
    cdef uint32_t size = <uint32_t> (into.size - at - 4)
    memcpy(into.data + at, &size, 4)


cdef int put_whole(Buffer* into, bint is_negative, uint64_t whole) except -1:
    put_tag(into, WHOLE_ABOVE if not is_negative and whole >> 63 else WHOLE)
    if is_negative:
        whole = <uint64_t> 0 - whole
    return put_bytes(into, &whole, 8)


cdef int put_double(Buffer* into, double number) except -1:
    cdef double size = -number if number < 0 else number
    cdef uint64_t whole
    if size < 18446744073709551616.0 and (number >= 0 or size <= 9223372036854775808.0):
        whole = <uint64_t> size
        if <double> whole == size:
            return put_whole(into, number < 0, whole)
    put_tag(into, DOUBLE)
    return put_bytes(into, &number, 8)


cdef int put_code_point(Buffer* into, uint32_t code) except -1:
    cdef uint8_t[4] bytes
    cdef size_t size = 1
    if code < 0x80:
        bytes[0] = <uint8_t> code
    elif code < 0x800:
        bytes[0] = <uint8_t> (0xC0 | code >> 6)
        size = 2
    elif code < 0x10000:
        bytes[0] = <uint8_t> (0xE0 | code >> 12)
        bytes[1] = <uint8_t> (0x80 | code >> 6 & 0x3F)
        size = 3
    else:
        bytes[0] = <uint8_t> (0xF0 | code >> 18)
        bytes[1] = <uint8_t> (0x80 | code >> 12 & 0x3F)
        bytes[2] = <uint8_t> (0x80 | code >> 6 & 0x3F)
        size = 4
    if size > 1:
        bytes[size - 1] = <uint8_t> (0x80 | code & 0x3F)
    return put_bytes(into, bytes, size)


cdef int sort_pairs(Documents found, size_t begin) noexcept:
    """Sort the pairs from a byte on. Return a fault if an attribute stands there twice."""
    cdef uint64_t* pairs = <uint64_t*> (found.pairs.data + begin)
    cdef size_t n = (found.pairs.size - begin) // 8
    cdef size_t i, j
    cdef uint64_t pair
    if n > FEW:
        qsort(pairs, n, 8, by_number)
    else:
        for i in range(1, n):
            pair = pairs[i]
            j = i
            while j > 0 and pairs[j - 1] > pair:
                pairs[j] = pairs[j - 1]
                j -= 1
            pairs[j] = pair
    for i in range(1, n):
        if pairs[i] >> 32 == pairs[i - 1] >> 32:
            return NAME_TWICE
    return 0


cdef int by_number(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t*> a)[0]
    cdef uint64_t y = (<const uint64_t*> b)[0]
    return (x > y) - (x < y)


cdef int by_hash(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const Name*> a).hash
    cdef uint64_t y = (<const Name*> b).hash
    return (x > y) - (x < y)


cdef int by_bytes(const void* a, const void* b) noexcept nogil:
    cdef const Span* x = <const Span*> a
    cdef const Span* y = <const Span*> b
    cdef int found = memcmp(x.at, y.at, x.size if x.size < y.size else y.size)
    if found:
        return found
    return (x.size > y.size) - (x.size < y.size)
