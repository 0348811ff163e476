from libc.stdint cimport uint8_t, uint32_t, uint64_t

from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.sstable.sst_reader cimport Sst

cdef struct Hit:
    uint64_t key_block       # where its key block lies, to find the row blocks that follow
    uint64_t rows
    uint64_t row_bytes
    uint64_t row_block       # where the first row block lies
    uint32_t key_block_size
    uint32_t row_block_size
    uint32_t position        # in the key batch
    uint32_t block_index
    uint32_t row_index
    uint8_t flags

cdef struct ProbeCounters:
    uint64_t visited             # keys that the files' ranges were right for
    uint64_t filter_checks
    uint64_t filter_negatives
    uint64_t false_positives     # no filter said no, and the key is absent all the same

cdef struct HitList:
    Hit* items
    size_t count
    size_t capacity

# Look the keys at `positions` (in key order) up, from place `start` on; the place reached: that
# of the first key behind the last of the file.
cdef Py_ssize_t probe_sst(
    Sst sst, KeyBatch keys, const uint32_t* positions, Py_ssize_t count, Py_ssize_t start,
    HitList* hits, ProbeCounters* counters
) except -1 nogil
