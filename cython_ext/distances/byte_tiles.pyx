"""Which pairs of vectors may be close, by products of 8-bit numbers.

- A vector is a scale times whole numbers, and an error whose length is known. Rows have numbers
  from -127 to 127, queries from -63 to 63, so that no 16-bit sum of two products overflows.
- A pair is a candidate unless its whole product is less than a bound: the sum of four products of a
  number of the query and one of the row. The caller widens it by the errors, so every close pair is
  a candidate. Which others are depends on the machine.
- Queries lie in panels of 16, four components at a time. Sums live in registers only.
- AVX-512 with VNNI or AVX2 is used where the machine has it, chosen at run time; otherwise portable
  C.
"""

cimport cython
from libc.math cimport fabs, sqrt
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

ctypedef fused real:
    float
    double

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define BYTE_LANES 16
    #define BYTE_TERMS 4
    /* Bytes of query panels that rows pass by: they stay in the second cache. */
    #define BYTE_BLOCK (128 * 1024)

    typedef struct {
        const uint8_t* panels; const float* query_terms; int64_t first; int64_t last; int64_t width;
        int64_t queries; const int8_t* rows; const int32_t* starts; const float* row_terms;
        int64_t count; int32_t* found_queries; int32_t* found_rows;
    } ByteTask;

    /* Note the candidates of one row and one panel. A bound that is no number rules nothing out. */
    static inline int64_t byte_note(const ByteTask* t, int64_t p, int64_t row, const int32_t* sums,
                                    int64_t n)
    {
        const float* u = t->query_terms + p * BYTE_TERMS * BYTE_LANES;
        const float* w = t->row_terms + row * BYTE_TERMS;
        for (int l = 0; l < BYTE_LANES; l++) {
            const float bound = u[l] * w[0] + u[BYTE_LANES + l] * w[1]
                + u[2 * BYTE_LANES + l] * w[2] + u[3 * BYTE_LANES + l] * w[3];
            t->found_queries[n] = (int32_t) (p * BYTE_LANES + l);
            t->found_rows[n] = (int32_t) row;
            n += (p * BYTE_LANES + l < t->queries) & !((float) sums[l] < bound);
        }
        return n;
    }

    static int64_t byte_portable(const ByteTask* t)
    {
        const int64_t d = t->width;
        int64_t n = 0;
        for (int64_t p = t->first; p < t->last; p++) {
            const uint8_t* q = t->panels + p * d * BYTE_LANES;
            for (int64_t r = 0; r < t->count; r++) {
                int32_t sums[BYTE_LANES];
                const int8_t* x = t->rows + r * d;
                for (int l = 0; l < BYTE_LANES; l++) sums[l] = t->starts[r];
                for (int64_t k = 0; k < d; k += 4)
                    for (int l = 0; l < BYTE_LANES; l++)
                        for (int b = 0; b < 4; b++)
                            sums[l] += (int32_t) q[(k * BYTE_LANES) + l * 4 + b] * x[k + b];
                n = byte_note(t, p, r, sums, n);
            }
        }
        return n;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    /* R rows at once; V vectors make a panel. */
    #define DEFINE_BYTES(NAME, TARGET, VECTOR, V, R, ZERO, LOAD, ANY)                              \\
    TARGET static int64_t NAME(const ByteTask* t)                                                  \\
    {                                                                                              \\
        const int64_t d = t->width;                                                                \\
        int64_t block = BYTE_BLOCK / (BYTE_LANES * d), n = 0;                                      \\
        if (block < 1) block = 1;                                                                  \\
        for (int64_t first = t->first; first < t->last; first += block) {                          \\
            const int64_t last = first + block < t->last ? first + block : t->last;                \\
            for (int64_t at = 0; at < t->count; at += R) {                                         \\
                const int64_t here = t->count - at < R ? t->count - at : R;                        \\
                const int8_t* x[R];                                                                \\
                for (int64_t r = 0; r < R; r++) x[r] = t->rows + (at + (r < here ? r : 0)) * d;    \\
                for (int64_t p = first; p < last; p++) {                                           \\
                    const uint8_t* q = t->panels + p * d * BYTE_LANES;                             \\
                    VECTOR a[R][V];                                                                \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++)                                                    \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < V; v++)                                                \\
                            a[r][v] = ZERO(t->starts[at + (r < here ? r : 0)]);                    \\
                    for (int64_t k = 0; k < d; k += 4) {                                           \\
                        VECTOR y[V];                                                               \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < V; v++)                                                \\
                            y[v] = LOAD((const void*) (q + k * BYTE_LANES + v * sizeof(VECTOR)));  \\
                        _Pragma("GCC unroll 16")                                                   \\
                        for (int r = 0; r < R; r++) {                                              \\
                            int32_t four;                                                          \\
                            memcpy(&four, x[r] + k, 4);                                            \\
                            const VECTOR s = ZERO(four);                                           \\
                            _Pragma("GCC unroll 4")                                                \\
                            for (int v = 0; v < V; v++) a[r][v] = ANY(a[r][v], y[v], s);           \\
                        }                                                                          \\
                    }                                                                              \\
                    const float* u = t->query_terms + p * BYTE_TERMS * BYTE_LANES;                 \\
                    for (int64_t r = 0; r < here; r++) {                                           \\
                        int32_t sums[BYTE_LANES], hit = 0;                                         \\
                        const float* w = t->row_terms + (at + r) * BYTE_TERMS;                     \\
                        memcpy(sums, a[r], sizeof sums);                                           \\
                        for (int l = 0; l < BYTE_LANES; l++)                                       \\
                            hit |= !((float) sums[l] < u[l] * w[0] + u[BYTE_LANES + l] * w[1]      \\
                                     + u[2 * BYTE_LANES + l] * w[2] + u[3 * BYTE_LANES + l] * w[3]);\\
                        if (hit) n = byte_note(t, p, at + r, sums, n);                             \\
                    }                                                                              \\
                }                                                                                  \\
            }                                                                                      \\
        }                                                                                          \\
        return n;                                                                                  \\
    }
    #define BYTE_SUM_AVX2(A, Y, S)                                                                 \\
        _mm256_add_epi32(A, _mm256_madd_epi16(_mm256_maddubs_epi16(Y, S), _mm256_set1_epi16(1)))
    DEFINE_BYTES(byte_avx2, __attribute__((target("avx2"))), __m256i, 2, 4, _mm256_set1_epi32,
                 _mm256_loadu_si256, BYTE_SUM_AVX2)
    DEFINE_BYTES(byte_vnni, __attribute__((target("avx512f,avx512bw,avx512vnni"))), __m512i, 1, 12,
                 _mm512_set1_epi32, _mm512_loadu_si512, _mm512_dpbusd_epi32)
    static int byte_level(void) {
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vnni")) return 2;
        return __builtin_cpu_supports("avx2") != 0;
    }
    static int64_t byte_run(const ByteTask* t, int level)
    {
        return level == 2 ? byte_vnni(t) : level == 1 ? byte_avx2(t) : byte_portable(t);
    }
    #else
    static int byte_level(void) { return 0; }
    static int64_t byte_run(const ByteTask* t, int level) { return byte_portable(t); }
    #endif
    """
    ctypedef struct ByteTask:
        const uint8_t* panels
        const float* query_terms
        int64_t first
        int64_t last
        int64_t width
        int64_t queries
        const int8_t* rows
        const int32_t* starts
        const float* row_terms
        int64_t count
        int32_t* found_queries
        int32_t* found_rows
    int byte_level() noexcept nogil
    int64_t byte_run(const ByteTask* task, int level) noexcept nogil

cdef enum:
    LANES = 16
    TERMS = 4
    MIDDLE = 64

#: The greatest whole number of a row, and of a query.
ROW_MOST = 127
QUERY_MOST = 63
#: By the machine: 0 portable C, 1 AVX2, 2 AVX-512 with VNNI.
LEVEL = byte_level()


def quantized(const real[:, ::1] vectors not None, int most):
    """Return vectors as whole numbers up to ``most``, and of each its scale, its length, and the
    length of its error.

    Whole numbers stand in rows of a multiple of four, filled up with zeros. A vector of zeros has
    the scale 0.
    """
    cdef Py_ssize_t count = vectors.shape[0], width = vectors.shape[1], i, k
    cdef Py_ssize_t padded = (width + 3) // 4 * 4
    cdef double greatest, scale, inverse, value, squares, errors, whole
    cdef int8_t[:, ::1] numbers
    cdef double[::1] scales, lengths, lost
    found = np.zeros((count, padded), np.int8)
    parts = [np.zeros(count, np.float64) for _ in range(3)]
    numbers = found
    scales, lengths, lost = parts
    if width == 0:
        return found, *parts
    with nogil:
        for i in range(count):
            greatest = 0
            for k in range(width):
                value = fabs(<double> vectors[i, k])
                if value > greatest:
                    greatest = value
            if greatest == 0:
                continue
            scale = greatest / most
            inverse = 1 / scale
            squares = errors = 0
            for k in range(width):
                value = <double> vectors[i, k]
                whole = value * inverse
                # Half up, whatever the mode of rounding is.
                numbers[i, k] = <int8_t> (<int32_t> (whole + 1024.5) - 1024)
                squares += value * value
                value -= scale * numbers[i, k]
                errors += value * value
            scales[i], lengths[i], lost[i] = scale, sqrt(squares), sqrt(errors)
    return found, *parts


@cython.final
cdef class BytePanels:
    """Queries, packed for comparison with any number of rows. It is not thread-safe."""

    cdef uint8_t* panels
    cdef float* terms
    cdef readonly Py_ssize_t count  # queries
    cdef readonly Py_ssize_t width  # whole numbers
    cdef readonly Py_ssize_t rows  # most rows of one call of `candidates`
    cdef int32_t[::1] found_queries
    cdef int32_t[::1] found_rows
    cdef object queries_found
    cdef object rows_found

    def __cinit__(
        self,
        const int8_t[:, ::1] queries not None,
        const float[:, ::1] terms not None,
        Py_ssize_t rows,
    ):
        cdef Py_ssize_t padded, q, k
        self.count, self.width = queries.shape[0], queries.shape[1]
        self.rows = rows
        if terms.shape[0] != self.count or terms.shape[1] != TERMS or rows < 1 or self.width % 4:
            raise InvalidArgumentError(
                f"{self.count} queries of {self.width} numbers, {terms.shape[0]} x "
                f"{terms.shape[1]} terms, {rows} rows: give four terms for each query, a multiple "
                "of four numbers, and at least one row"
            )
        padded = (self.count + LANES - 1) // LANES * LANES
        self.panels = <uint8_t*> malloc(max(1, padded * self.width))
        self.terms = <float*> malloc(max(1, padded * TERMS) * sizeof(float))
        if self.panels == NULL or self.terms == NULL:
            raise MemoryError(f"cannot allocate {self.count} queries")
        memset(self.panels, MIDDLE, max(1, padded * self.width))
        memset(self.terms, 0, max(1, padded * TERMS) * sizeof(float))
        self.queries_found = np.empty(padded * rows + LANES, np.int32)
        self.rows_found = np.empty(padded * rows + LANES, np.int32)
        self.found_queries, self.found_rows = self.queries_found, self.rows_found
        with nogil:
            for q in range(self.count):
                for k in range(TERMS):
                    self.terms[(q // LANES * TERMS + k) * LANES + q % LANES] = terms[q, k]
                for k in range(self.width):
                    self.panels[
                        q // LANES * self.width * LANES + k // 4 * 4 * LANES + q % LANES * 4 + k % 4
                    ] = <uint8_t> (queries[q, k] + MIDDLE)

    def __init__(self, queries, terms, rows):
        pass

    def __dealloc__(self):
        free(self.panels)
        free(self.terms)

    def candidates(
        self,
        const int8_t[:, ::1] rows not None,
        const float[:, ::1] terms not None,
        Py_ssize_t first=0,
        Py_ssize_t last=-1,
        int level=-1,
    ):
        """Return the candidates: their queries and their rows, as two arrays that the next call
        overwrites. At most ``self.rows`` rows. Only queries from ``first`` to ``last`` need be
        looked at; some beside them are. ``level``: portable C (0), AVX2 (1) or AVX-512 with VNNI
        (2) instead of the best that the machine has."""
        cdef ByteTask task
        cdef int64_t found = 0
        cdef Py_ssize_t count = rows.shape[0], i, k
        cdef int32_t total
        cdef int32_t[::1] starts
        if count > self.rows or terms.shape[0] != count or terms.shape[1] != TERMS or (
            rows.shape[1] != self.width
        ):
            raise InvalidArgumentError(
                f"{count} rows of {rows.shape[1]} numbers, {terms.shape[0]} x {terms.shape[1]} "
                f"terms: give at most {self.rows} rows of {self.width}, and four terms for each"
            )
        if level < 0 or level > byte_level():
            level = byte_level()
        if last < 0 or last > self.count:
            last = self.count
        if count and 0 <= first < last and self.width:
            starts = np.empty(count, np.int32)
            task.panels = self.panels
            task.query_terms = self.terms
            task.first = first // LANES
            task.last = (last + LANES - 1) // LANES
            task.width = self.width
            task.queries = self.count
            task.rows = &rows[0, 0]
            task.starts = &starts[0]
            task.row_terms = &terms[0, 0]
            task.count = count
            task.found_queries = &self.found_queries[0]
            task.found_rows = &self.found_rows[0]
            with nogil:
                for i in range(count):
                    total = 0
                    for k in range(self.width):
                        total += rows[i, k]
                    starts[i] = -MIDDLE * total
                found = byte_run(&task, level)
        return self.queries_found[:found], self.rows_found[:found]
