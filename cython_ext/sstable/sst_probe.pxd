from libc.stdint cimport uint32_t, uint64_t

from lsmstate.cython_ext.keys.key_codec cimport KeyBatch
from lsmstate.cython_ext.sstable.sst_reader cimport Sst
from lsmstate.cython_ext.sstable.sst_walker cimport HitList

cdef struct ProbeCounters:
    uint64_t visited             # keys that the files' ranges were right for
    uint64_t filter_checks
    uint64_t filter_negatives
    uint64_t false_positives     # no filter said no, and the key is absent all the same

# Look the keys at `positions` (in key order) up, from place `start` on; the place reached: that
# of the first key behind the last of the file.
cdef Py_ssize_t probe_sst(
    Sst sst, KeyBatch keys, const uint32_t* positions, Py_ssize_t count, Py_ssize_t start,
    HitList* hits, ProbeCounters* counters
) except -1 nogil
