from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from lsmstate.cython_ext.rows.arrow_read cimport ORDER_FLOAT, ORDER_SIGNED

cdef struct ZoneColumn:
    uint32_t number    # of the column among those of the rows
    uint32_t width     # bytes of a value: 1, 2, 4 or 8
    uint64_t place     # of the value in a row
    int order          # one of `Order`
    uint64_t sign      # the bit of a negative value
    uint64_t infinity  # of a float: its bits

cdef class ZoneColumns:
    """Columns of a stream's rows that have zones."""
    cdef ZoneColumn* columns
    cdef readonly Py_ssize_t count


cdef inline bint zone_word(
    const ZoneColumn* column, const uint8_t* row, size_t size, uint64_t* word
) noexcept nogil:
    """A row's value as a word that is ordered as keys are; False: it is null, or lies behind the
    end of a damaged row."""
    cdef uint64_t value = 0, magnitude
    if column.place + column.width > size or row[column.number >> 3] >> (column.number & 7) & 1:
        return False
    if column.width == 8:
        memcpy(&value, row + column.place, 8)
    elif column.width == 4:
        memcpy(&value, row + column.place, 4)
    else:
        memcpy(&value, row + column.place, column.width)
    if column.order == ORDER_SIGNED:
        value = ((value ^ column.sign) - column.sign) ^ (<uint64_t> 1 << 63)
    elif column.order == ORDER_FLOAT:
        magnitude = value & ~column.sign
        if magnitude > column.infinity:
            value = <uint64_t> -1
        elif value & column.sign:
            value = column.sign - magnitude
        else:
            value |= column.sign
    word[0] = value
    return True
