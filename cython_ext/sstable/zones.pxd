from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from lsmstate.cython_ext.base.coding cimport load_u32, load_u64
from lsmstate.cython_ext.rows.arrow_read cimport ORDER_FLOAT, ORDER_SIGNED
from lsmstate.cython_ext.sstable.key_block cimport KeyBlock

cdef struct ZoneColumn:
    uint32_t number    # of the column among those of the rows
    uint32_t width     # bytes of a value: 1, 2, 4 or 8
    uint64_t place     # of the value in a row
    int order          # one of `Order`
    uint64_t sign      # the bit of a negative value
    uint64_t infinity  # of a float: its bits

cdef struct Zone:      # of one column in one row block; without a value its least is the greater
    uint64_t least
    uint64_t greatest


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


cdef inline void widen(
    ZoneColumns columns, const uint8_t* row, size_t size, Zone* zones
) noexcept nogil:
    """Take a row into the zones of its block."""
    cdef Py_ssize_t c
    cdef uint64_t word = 0
    for c in range(columns.count):
        if zone_word(&columns.columns[c], row, size, &word):
            zones[c].least = min(zones[c].least, word)
            zones[c].greatest = max(zones[c].greatest, word)


cdef inline uint32_t zone_column(const KeyBlock* block, uint32_t place) noexcept nogil:
    """The number of a key block's zone column."""
    return load_u32(block.zones + 4 * <size_t> place)


cdef inline const uint8_t* _zones_of(const KeyBlock* block, uint32_t row_block) noexcept nogil:
    cdef size_t columns = block.zone_columns
    return block.zones + 4 * columns + row_block * (4 + columns * sizeof(Zone))


cdef inline uint32_t zone_rows(const KeyBlock* block, uint32_t row_block) noexcept nogil:
    """The number of rows in a row block, which is one of the key block."""
    return load_u32(_zones_of(block, row_block))


cdef inline Zone zone_at(const KeyBlock* block, uint32_t row_block, uint32_t place) noexcept nogil:
    """The zone of a row block in a key block's zone column."""
    cdef const uint8_t* at = _zones_of(block, row_block) + 4 + place * sizeof(Zone)
    cdef Zone zone
    zone.least = load_u64(at)
    zone.greatest = load_u64(at + 8)
    return zone
