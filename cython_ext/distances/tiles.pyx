"""Which pairs of vectors may be close: blocks of float32, compared without a matrix of distances.

- A *score* of a query q and a row x is their product, or a negative distance. A pair is a candidate
  if ``score - row_bound[x] >= query_bound[q]``. The caller widens the bounds by what float32 loses,
  so every close pair is a candidate. Which others are depends on the machine.
- Queries lie in panels of 16, component by component. A block of panels stays in the cache while
  rows pass by; scores live in registers only.
- AVX-512 or AVX2 is used where the machine has it, chosen at run time; otherwise portable C.
"""

cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define TILE_LANES 16
    /* Bytes of query panels that rows pass by: they stay in the second cache. */
    #define TILE_BYTES (192 * 1024)

    typedef struct {
        const float* panels; const float* query_bounds; int64_t first; int64_t last; int64_t width;
        const float* rows; const float* row_bounds; int64_t count;
        int32_t* found_queries; int32_t* found_rows;
    } TileTask;

    /* One function per score and set of instructions. V: a vector of W floats, of which P make a
       panel; R rows are compared at once. SCORE adds component k of a row, S, and of the queries,
       X, to the score A. */
    #define DEFINE_TILE(NAME, TARGET, V, VI, W, P, R, SCORE)                                       \\
    TARGET static int64_t NAME(const TileTask* t)                                                  \\
    {                                                                                              \\
        const int64_t d = t->width, panels = t->last;                                              \\
        int64_t block = TILE_BYTES / (TILE_LANES * 4 * (d ? d : 1)), n = 0;                        \\
        if (block < 1) block = 1;                                                                  \\
        for (int64_t first = t->first; first < panels; first += block) {                           \\
            const int64_t last = first + block < panels ? first + block : panels;                  \\
            for (int64_t at = 0; at < t->count; at += R) {                                         \\
                const int64_t here = t->count - at < R ? t->count - at : R;                        \\
                const float* x[R];                                                                 \\
                for (int64_t r = 0; r < R; r++) x[r] = t->rows + (at + (r < here ? r : 0)) * d;    \\
                for (int64_t p = first; p < last; p++) {                                           \\
                    const float* q = t->panels + p * d * TILE_LANES;                               \\
                    V a[R][P], h[P];                                                               \\
                    VI any;                                                                        \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++) {                                                  \\
                        const float b = -t->row_bounds[at + (r < here ? r : 0)];                   \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < P; v++) a[r][v] = (V){0} + b;                          \\
                    }                                                                              \\
                    for (int64_t k = 0; k < d; k++) {                                              \\
                        V y[P];                                                                    \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < P; v++) memcpy(&y[v], q + k * TILE_LANES + v * W, sizeof(V));\\
                        _Pragma("GCC unroll 16")                                                   \\
                        for (int r = 0; r < R; r++) {                                              \\
                            const V S = (V){0} + x[r][k];                                          \\
                            _Pragma("GCC unroll 4")                                                \\
                            for (int v = 0; v < P; v++) { const V X = y[v]; SCORE(a[r][v], V, VI) }\\
                        }                                                                          \\
                    }                                                                              \\
                    _Pragma("GCC unroll 4")                                                        \\
                    for (int v = 0; v < P; v++)                                                    \\
                        memcpy(&h[v], t->query_bounds + p * TILE_LANES + v * W, sizeof(V));        \\
                    any = (VI){0};                                                                 \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++)                                                    \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < P; v++) any |= a[r][v] >= h[v];                        \\
                    int32_t is_any[W], hit = 0;                                                    \\
                    memcpy(is_any, &any, sizeof any);                                              \\
                    for (int l = 0; l < W; l++) hit |= is_any[l];                                  \\
                    if (!hit) continue;                                                            \\
                    float scores[R][TILE_LANES];                                                   \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++)                                                    \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < P; v++) memcpy(&scores[r][v * W], &a[r][v], sizeof(V));\\
                    for (int64_t r = 0; r < here; r++) {                                           \\
                        for (int l = 0; l < TILE_LANES; l++) {                                     \\
                            t->found_queries[n] = (int32_t) (p * TILE_LANES + l);                  \\
                            t->found_rows[n] = (int32_t) (at + r);                                 \\
                            n += scores[r][l] >= t->query_bounds[p * TILE_LANES + l];                 \\
                        }                                                                          \\
                    }                                                                              \\
                }                                                                                  \\
            }                                                                                      \\
        }                                                                                          \\
        return n;                                                                                  \\
    }

    #define SCORE_PRODUCT(A, V, VI) A += S * X;
    #define SCORE_SUM(A, V, VI) A -= (V) ((VI) (S - X) & 0x7fffffff);
    #define SCORE_GREATEST(A, V, VI) {                                                             \\
        const V D = -(V) ((VI) (S - X) & 0x7fffffff);                                              \\
        const VI M = D < A;                                                                        \\
        A = (V) (((VI) D & M) | ((VI) A & ~M)); }
    #define SCORE_COUNT(A, V, VI) A += __builtin_convertvector(S != X, V);

    #define DEFINE_TILES(KIND, SCORE)                                                              \\
        DEFINE_TILE(KIND##_portable, , F4, I4, 4, 4, 2, SCORE)                                     \\
        DEFINE_AVX2(KIND, SCORE)

    typedef float F4 __attribute__((vector_size(16)));
    typedef int32_t I4 __attribute__((vector_size(16)));
    #if defined(__x86_64__) && defined(__GNUC__)
    typedef float F8 __attribute__((vector_size(32)));
    typedef int32_t I8 __attribute__((vector_size(32)));
    typedef float F16 __attribute__((vector_size(64)));
    typedef int32_t I16 __attribute__((vector_size(64)));
    #define DEFINE_AVX2(KIND, SCORE)                                                               \\
        DEFINE_TILE(KIND##_avx2, __attribute__((target("avx2,fma"))), F8, I8, 8, 2, 6, SCORE)      \\
        DEFINE_TILE(KIND##_avx512, __attribute__((target("avx512f,avx512dq"))),                    \\
                    F16, I16, 16, 1, 12, SCORE)
    static int tile_level(void) {
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return 2;
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    #define TILE_OF(KIND, LEVEL)                                                                   \\
        ((LEVEL) == 2 ? KIND##_avx512 : (LEVEL) == 1 ? KIND##_avx2 : KIND##_portable)
    #else
    #define DEFINE_AVX2(KIND, SCORE)
    static int tile_level(void) { return 0; }
    #define TILE_OF(KIND, LEVEL) KIND##_portable
    #endif

    DEFINE_TILES(tile_product, SCORE_PRODUCT)
    DEFINE_TILES(tile_sum, SCORE_SUM)
    DEFINE_TILES(tile_greatest, SCORE_GREATEST)
    DEFINE_TILES(tile_count, SCORE_COUNT)

    static int64_t tile_run(const TileTask* t, int kind, int level)
    {
        switch (kind) {
        case 0: return TILE_OF(tile_product, level)(t);
        case 1: return TILE_OF(tile_sum, level)(t);
        case 2: return TILE_OF(tile_greatest, level)(t);
        default: return TILE_OF(tile_count, level)(t);
        }
    }
    """
    ctypedef struct TileTask:
        const float* panels
        const float* query_bounds
        int64_t first
        int64_t last
        int64_t width
        const float* rows
        const float* row_bounds
        int64_t count
        int32_t* found_queries
        int32_t* found_rows
    int tile_level() noexcept nogil
    int64_t tile_run(const TileTask* task, int kind, int level) noexcept nogil

cdef enum:
    LANES = 16

#: What a score is.
PRODUCT = 0  #: the sum of the products of components
SUM = 1  #: less the sum of the differences
GREATEST = 2  #: less the greatest difference; row bounds are 0
COUNT = 3  #: less the number of components that differ

#: By the machine: 0 portable C, 1 AVX2, 2 AVX-512.
LEVEL = tile_level()


@cython.final
cdef class Panels:
    """Queries, packed for comparison with any number of rows. It is not thread-safe."""

    cdef float* panels
    cdef float* bounds
    cdef int kind
    cdef readonly Py_ssize_t count  # queries
    cdef readonly Py_ssize_t width  # components
    cdef readonly Py_ssize_t rows  # most rows of one call of `candidates`
    cdef int32_t[::1] found_queries
    cdef int32_t[::1] found_rows
    cdef object queries_found
    cdef object rows_found

    def __cinit__(
        self,
        int kind,
        const float[:, ::1] queries not None,
        const float[::1] bounds not None,
        Py_ssize_t rows,
    ):
        cdef Py_ssize_t padded, q, k
        self.kind = kind
        self.count, self.width = queries.shape[0], queries.shape[1]
        self.rows = rows
        if bounds.shape[0] != self.count or rows < 1:
            raise InvalidArgumentError(
                f"{self.count} queries, {bounds.shape[0]} bounds, {rows} rows: give a bound for "
                "each query, and at least one row"
            )
        padded = (self.count + LANES - 1) // LANES * LANES
        self.panels = <float*> malloc(max(1, padded * self.width) * sizeof(float))
        self.bounds = <float*> malloc(max(1, padded) * sizeof(float))
        if self.panels == NULL or self.bounds == NULL:
            raise MemoryError(f"cannot allocate {self.count} queries")
        self.queries_found = np.empty(padded * rows + 1, np.int32)
        self.rows_found = np.empty(padded * rows + 1, np.int32)
        self.found_queries, self.found_rows = self.queries_found, self.rows_found
        with nogil:
            for q in range(padded):
                self.bounds[q] = bounds[q] if q < self.count else <float> INFINITY
                for k in range(self.width):
                    self.panels[(q // LANES * self.width + k) * LANES + q % LANES] = (
                        queries[q, k] if q < self.count else 0
                    )

    def __init__(self, kind, queries, bounds, rows):
        pass

    def __dealloc__(self):
        free(self.panels)
        free(self.bounds)

    def candidates(
        self,
        const float[:, ::1] rows not None,
        const float[::1] row_bounds not None,
        Py_ssize_t first=0,
        Py_ssize_t last=-1,
        int level=-1,
    ):
        """Return the candidates: their queries and their rows, as two arrays that the next call
        overwrites. At most ``self.rows`` rows. Only queries from ``first`` to ``last`` need be
        looked at; some beside them are. ``level``: portable C (0), AVX2 (1) or AVX-512 (2) instead
        of the best that the machine has."""
        cdef TileTask task
        cdef int64_t found = 0
        cdef Py_ssize_t count = rows.shape[0]
        if count > self.rows or row_bounds.shape[0] != count or rows.shape[1] != self.width:
            raise InvalidArgumentError(
                f"{count} rows of {rows.shape[1]} components, {row_bounds.shape[0]} bounds: give "
                f"at most {self.rows} rows of {self.width}, and a bound for each"
            )
        if level < 0 or level > tile_level():
            level = tile_level()
        if last < 0 or last > self.count:
            last = self.count
        if count and 0 <= first < last and self.width:
            task.panels = self.panels
            task.query_bounds = self.bounds
            task.first = first // LANES
            task.last = (last + LANES - 1) // LANES
            task.width = self.width
            task.rows = &rows[0, 0]
            task.row_bounds = &row_bounds[0]
            task.count = count
            task.found_queries = &self.found_queries[0]
            task.found_rows = &self.found_rows[0]
            with nogil:
                found = tile_run(&task, self.kind, level)
        return self.queries_found[:found], self.rows_found[:found]
