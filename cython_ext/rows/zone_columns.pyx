"""Zones: the least and the greatest value of some columns in each row block.

A value is a word of eight bytes that is ordered as keys are: NaN is the greatest, and -0.0 equals
0.0. ``lsmstate/zones.py`` makes the same words of the bounds that are asked for.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from lsmstate.cython_ext.rows.arrow_read cimport (
    KIND_FIXED, ORDER_FLOAT, ORDER_SIGNED, ORDER_UNSIGNED, Node,
)
from lsmstate.cython_ext.rows.row_codec cimport RowCodec

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef dict INFINITY = {2: 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}


@cython.final
cdef class ZoneColumns:
    """Immutable, so threads may share it."""

    def __init__(self, RowCodec codec not None, numbers):
        """Find the columns with these numbers in the codec's rows."""
        cdef Py_ssize_t c
        cdef ZoneColumn* column
        cdef const Node* node
        numbers = list(numbers)
        self.columns = <ZoneColumn*> calloc(len(numbers) + 1, sizeof(ZoneColumn))
        if self.columns == NULL:
            raise MemoryError(f"no memory for {len(numbers)} zone columns")
        for c in range(len(numbers)):
            if not 0 <= numbers[c] < codec.tree.root.n_children:
                raise InvalidArgumentError(f"the rows have no column {numbers[c]}")
            node = &codec.tree.root.children[<Py_ssize_t> numbers[c]]
            if node.kind != KIND_FIXED or node.width != node.row_width or node.width > 8 or (
                node.order not in (ORDER_FLOAT, ORDER_SIGNED, ORDER_UNSIGNED)
            ):
                raise InvalidArgumentError(f"column {numbers[c]} of the rows can have no zones")
            column = &self.columns[c]
            column.number = numbers[c]
            column.width = <uint32_t> node.width
            column.place = <uint64_t> codec.layout.places[<Py_ssize_t> numbers[c]]
            column.order = node.order
            column.sign = <uint64_t> 1 << (8 * column.width - 1)
            if node.order == ORDER_FLOAT:
                column.infinity = INFINITY[column.width]
            self.count += 1

    def __dealloc__(self):
        free(self.columns)

    @property
    def numbers(self):
        """Return the numbers of the columns."""
        return [self.columns[c].number for c in range(self.count)]
