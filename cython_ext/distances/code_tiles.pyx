"""Which pairs of points may be close, by codes of stored points: chunks of bytes.

- A *code* is a head of whole numbers from -127 to 127, and a tail of more. All pairs are compared
  by heads. Those that are left are compared by both.
- Queries have whole numbers from -63 to 63 for heads, so that no 16-bit sum of two products
  overflows, and 16-bit numbers for both.
- A row has a start and a query a limit: the product of heads and the start must reach the limit.
  The caller widens both by what whole numbers lose, so every close pair is a candidate.
- Queries lie in panels of 16, four components at a time. Sums live in registers only.
- AVX-512 with VNNI or AVX2 is used where the machine has it, chosen at run time; otherwise portable
  C. All give the same candidates, since sums of whole numbers are exact.

A chunk holds, in the order of the machine's bytes: an int64 that is the number of its first row, an
int32 that is how many rows it has, a float32 that no length and error of a row exceed together, the
heads, the tails, and of all rows half the squared length, the length, the error of the head, the
error of both (float32) and the sum of the head (int32).
"""

cimport cython
from libc.math cimport ceil, floor
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define CODE_LANES 16
    /* Bytes of query panels that rows pass by: they stay in the second cache. */
    #define CODE_BLOCK (128 * 1024)
    /* Most rows that are compared at once. */
    #define CODE_ROWS 12
    #if defined(__GNUC__)
    #define CODE_PREFETCH(P) __builtin_prefetch(P)
    #else
    #define CODE_PREFETCH(P)
    #endif

    typedef struct {
        const uint8_t* panels; const int16_t* wholes; const int32_t* limits; int64_t queries;
        int64_t head; int64_t tail;
        const double* scales; const double* rests; const double* lengths;
        const int8_t* heads; const int8_t* tails; const int32_t* starts;
        const float* halves; const float* errors; int64_t count;
        int32_t* found_queries; int32_t* found_rows; int32_t* words;
    } CodeTask;

    /* Whether the whole codes leave a pair. What is no number rules nothing out. */
    static inline int code_is_left(const CodeTask* t, int64_t q, int64_t row, int32_t sum)
    {
        return !(t->scales[q] * sum + t->rests[q] + t->lengths[q] * t->errors[row]
                 - t->halves[row] < 0);
    }

    static int32_t code_sum_portable(const int16_t* w, const int8_t* x, int64_t d)
    {
        int32_t sum = 0;
        for (int64_t k = 0; k < d; k++) sum += (int32_t) w[k] * x[k];
        return sum;
    }

    static int64_t code_portable(const CodeTask* t, int64_t n)
    {
        const int64_t d = t->head, panels = (t->queries + CODE_LANES - 1) / CODE_LANES;
        for (int64_t p = 0; p < panels; p++) {
            const uint8_t* q = t->panels + p * d * CODE_LANES;
            for (int64_t r = 0; r < t->count; r++) {
                int32_t sums[CODE_LANES];
                const int8_t* x = t->heads + r * d;
                for (int l = 0; l < CODE_LANES; l++) sums[l] = t->starts[r];
                for (int64_t k = 0; k < d; k += 4)
                    for (int l = 0; l < CODE_LANES; l++)
                        for (int b = 0; b < 4; b++)
                            sums[l] += (int32_t) q[(k * CODE_LANES) + l * 4 + b] * x[k + b];
                for (int l = 0; l < CODE_LANES; l++) {
                    t->found_queries[n] = (int32_t) (p * CODE_LANES + l);
                    t->found_rows[n] = (int32_t) r;
                    n += sums[l] >= t->limits[p * CODE_LANES + l];
                }
            }
        }
        return n;
    }

    /* Keep those of the pairs from ``first`` to ``last`` that whole codes leave. */
    #define DEFINE_LEFT(NAME, TARGET, SUM)                                                         \\
    TARGET static int64_t NAME(const CodeTask* t, int64_t first, int64_t last)                     \\
    {                                                                                              \\
        const int64_t h = t->head, d = t->tail, width = h + d;                                     \\
        int64_t n = first;                                                                         \\
        for (int64_t i = first; i < last; i++) {                                                   \\
            const int32_t q = t->found_queries[i], row = t->found_rows[i];                         \\
            const int32_t sum = SUM(t->wholes + q * width, t->heads + row * h, h,                  \\
                                    t->tails + row * d, d);                                        \\
            t->found_queries[n] = q;                                                               \\
            t->found_rows[n] = row;                                                                \\
            n += code_is_left(t, q, row, sum);                                                     \\
        }                                                                                          \\
        return n;                                                                                  \\
    }
    #define CODE_SUM_PORTABLE(W, X, H, Y, D)                                                       \\
        (code_sum_portable(W, X, H) + code_sum_portable((W) + (H), Y, D))
    DEFINE_LEFT(code_left_portable, , CODE_SUM_PORTABLE)

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define CODE_AVX2 __attribute__((target("avx2")))
    #define CODE_VNNI __attribute__((target("avx512f,avx512bw,avx512vnni,popcnt")))

    CODE_AVX2 static inline __m256i code_step(__m256i sum, const int16_t* w, const int8_t* x)
    {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*) x));
        const __m256i both = _mm256_madd_epi16(wide, _mm256_loadu_si256((const __m256i*) w));
        return _mm256_add_epi32(sum, both);
    }

    CODE_AVX2 static inline int32_t code_sum_avx2(const int16_t* w, const int8_t* x, int64_t h,
                                                  const int8_t* y, int64_t d)
    {
        __m256i sum = _mm256_setzero_si256();
        for (int64_t k = 0; k < h; k += 16) sum = code_step(sum, w + k, x + k);
        for (int64_t k = 0; k < d; k += 16) sum = code_step(sum, w + h + k, y + k);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
    DEFINE_LEFT(code_left_avx2, CODE_AVX2, code_sum_avx2)

    CODE_VNNI static inline __m512i code_steps(__m512i sum, const int16_t* w, const int8_t* x,
                                               int64_t d)
    {
        int64_t k = 0;
        for (; k + 32 <= d; k += 32)
            sum = _mm512_dpwssd_epi32(
                sum, _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*) (x + k))),
                _mm512_loadu_si512((const void*) (w + k)));
        if (k < d) {
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*) (x + k)));
            const __m256i some = _mm256_loadu_si256((const __m256i*) (w + k));
            sum = _mm512_dpwssd_epi32(sum, _mm512_zextsi256_si512(wide), _mm512_zextsi256_si512(some));
        }
        return sum;
    }

    CODE_VNNI static inline int32_t code_sum_vnni(const int16_t* w, const int8_t* x, int64_t h,
                                                  const int8_t* y, int64_t d)
    {
        const __m512i sum = code_steps(_mm512_setzero_si512(), w, x, h);
        return _mm512_reduce_add_epi32(code_steps(sum, w + h, y, d));
    }
    DEFINE_LEFT(code_left_vnni, CODE_VNNI, code_sum_vnni)

    /* Write a row beside those queries from ``first`` on that a mask has; returns how many. */
    static inline int code_noted(uint32_t mask, int64_t first, int64_t row, int32_t* queries,
                                 int32_t* rows)
    {
        int n = 0;
        for (; mask; mask &= mask - 1, n++) {
            queries[n] = (int32_t) (first + __builtin_ctz(mask));
            rows[n] = (int32_t) row;
        }
        return n;
    }
    /* Without a branch, which nobody could predict; there is room for CODE_LANES. */
    CODE_VNNI static inline int code_noted_vnni(uint32_t mask, int64_t first, int64_t row,
                                                int32_t* queries, int32_t* rows)
    {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i all = _mm512_add_epi32(lanes, _mm512_set1_epi32((int32_t) first));
        _mm512_storeu_si512(queries, _mm512_maskz_compress_epi32((__mmask16) mask, all));
        _mm512_storeu_si512(rows, _mm512_set1_epi32((int32_t) row));
        return __builtin_popcount(mask);
    }

    /* R rows at once; V vectors make a panel. Words of the rows lie side by side, so that one place
       leads to all. GREATER: of two vectors the greater sums. REACHED: a bit for each sum that is
       not below its limit. NOTE: see code_noted. A head of 16 numbers, the most frequent one, is unrolled. */
    #define DEFINE_CODES(NAME, TARGET, VECTOR, V, R, ALL, LOAD, ADD, GREATER, REACHED, NOTE)             \\
    TARGET static inline __attribute__((always_inline))                                            \\
    int64_t NAME##_of(const CodeTask* t, int64_t n, const int64_t d)                               \\
    {                                                                                              \\
        const int64_t panels = (t->queries + CODE_LANES - 1) / CODE_LANES;                         \\
        const int64_t block = CODE_BLOCK / (CODE_LANES * d) > 0 ? CODE_BLOCK / (CODE_LANES * d) : 1;\\
        int32_t* const words = t->words;                                                           \\
        int32_t* const queries = t->found_queries;                                                 \\
        int32_t* const rows = t->found_rows;                                                       \\
        for (int64_t first = 0; first < panels; first += block) {                                  \\
            const int64_t last = first + block < panels ? first + block : panels;                  \\
            for (int64_t at = 0; at < t->count; at += R) {                                         \\
                const int64_t here = t->count - at < R ? t->count - at : R;                        \\
                VECTOR starts[R];                                                                  \\
                for (int64_t r = 0; r < R; r++) {                                                  \\
                    const int64_t row = at + (r < here ? r : 0);                                   \\
                    for (int64_t k = 0; k < d; k += 4)                                             \\
                        memcpy(words + k / 4 * R + r, t->heads + row * d + k, 4);                  \\
                    starts[r] = ALL(t->starts[row]);                                               \\
                }                                                                                  \\
                for (int64_t p = first; p < last; p++) {                                           \\
                    const uint8_t* q = t->panels + p * d * CODE_LANES;                             \\
                    VECTOR a[R][V], limits[V], most[V];                                            \\
                    uint32_t found = 0, masks[R];                                                  \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++)                                                    \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < V; v++) a[r][v] = starts[r];                           \\
                    _Pragma("GCC unroll 4")                                                        \\
                    for (int64_t k = 0; k < d; k += 4) {                                           \\
                        VECTOR y[V];                                                               \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < V; v++)                                                \\
                            y[v] = LOAD((const void*) (q + k * CODE_LANES + v * sizeof(VECTOR)));  \\
                        _Pragma("GCC unroll 16")                                                   \\
                        for (int r = 0; r < R; r++) {                                              \\
                            const VECTOR s = ALL(words[k / 4 * R + r]);                            \\
                            _Pragma("GCC unroll 4")                                                \\
                            for (int v = 0; v < V; v++) a[r][v] = ADD(a[r][v], y[v], s);           \\
                        }                                                                          \\
                    }                                                                              \\
                    _Pragma("GCC unroll 4")                                                        \\
                    for (int v = 0; v < V; v++) {                                                  \\
                        limits[v] = LOAD((const void*) ((const char*) (t->limits + p * CODE_LANES) \\
                                                        + v * sizeof(VECTOR)));                    \\
                        most[v] = a[0][v];                                                         \\
                        _Pragma("GCC unroll 16")                                                   \\
                        for (int r = 1; r < R; r++) most[v] = GREATER(most[v], a[r][v]);           \\
                        found |= REACHED(limits[v], most[v]);                                      \\
                    }                                                                              \\
                    if (!found) continue;                                                          \\
                    _Pragma("GCC unroll 16")                                                       \\
                    for (int r = 0; r < R; r++) {                                                  \\
                        masks[r] = 0;                                                              \\
                        _Pragma("GCC unroll 4")                                                    \\
                        for (int v = 0; v < V; v++)                                                \\
                            masks[r] |= (uint32_t) REACHED(limits[v], a[r][v])                     \\
                                << (v * (CODE_LANES / V));                                         \\
                    }                                                                              \\
                    for (int64_t r = 0; r < here; r++)                                             \\
                        n += NOTE(masks[r], p * CODE_LANES, at + r, queries + n, rows + n);        \\
                }                                                                                  \\
            }                                                                                      \\
        }                                                                                          \\
        return n;                                                                                  \\
    }                                                                                              \\
    TARGET static int64_t NAME(const CodeTask* t, int64_t n)                                       \\
    {                                                                                              \\
        return t->head == 16 ? NAME##_of(t, n, 16) : NAME##_of(t, n, t->head);                     \\
    }
    #define CODE_ADD_AVX2(A, Y, S)                                                                 \\
        _mm256_add_epi32(A, _mm256_madd_epi16(_mm256_maddubs_epi16(Y, S), _mm256_set1_epi16(1)))
    #define CODE_REACHED_AVX2(L, A)                                                                \\
        (0xff & ~_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(L, A))))
    DEFINE_CODES(code_avx2, CODE_AVX2, __m256i, 2, 4, _mm256_set1_epi32, _mm256_loadu_si256,
                 CODE_ADD_AVX2, _mm256_max_epi32, CODE_REACHED_AVX2, code_noted)
    #define CODE_REACHED_VNNI(L, A) _mm512_cmple_epi32_mask(L, A)
    DEFINE_CODES(code_vnni, CODE_VNNI, __m512i, 1, 12, _mm512_set1_epi32, _mm512_loadu_si512,
                 _mm512_dpbusd_epi32, _mm512_max_epi32, CODE_REACHED_VNNI, code_noted_vnni)
    static int code_level(void) {
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vnni")) return 2;
        return __builtin_cpu_supports("avx2") != 0;
    }
    static int64_t code_run(const CodeTask* t, int64_t n, int level)
    {
        if (!level) return code_left_portable(t, n, code_portable(t, n));
        if (level == 2) return code_left_vnni(t, n, code_vnni(t, n));
        return code_left_avx2(t, n, code_avx2(t, n));
    }
    #else
    static int code_level(void) { return 0; }
    static int64_t code_run(const CodeTask* t, int64_t n, int level)
    {
        return code_left_portable(t, n, code_portable(t, n));
    }
    #endif
    """
    ctypedef struct CodeTask:
        const uint8_t* panels
        const int16_t* wholes
        const int32_t* limits
        int64_t queries
        int64_t head
        int64_t tail
        const double* scales
        const double* rests
        const double* lengths
        const int8_t* heads
        const int8_t* tails
        const int32_t* starts
        const float* halves
        const float* errors
        int64_t count
        int32_t* found_queries
        int32_t* found_rows
        int32_t* words
    enum: CODE_ROWS
    int code_level() noexcept nogil
    int64_t code_run(const CodeTask* task, int64_t found, int level) noexcept nogil

cdef enum:
    LANES = 16
    MIDDLE = 64
    FRONT = 16  # bytes of a chunk before its heads
    BESIDE = 20  # bytes of a row beside its code

#: The greatest whole number of a row's code, and of a query's head.
ROW_MOST = 127
QUERY_MOST = 63
#: Most rows of a chunk.
MOST_ROWS = 128
#: Bytes of a chunk before its heads, and of each row beside its code.
FRONT_BYTES = FRONT
BESIDE_BYTES = BESIDE
#: Beyond these, a start or a limit leaves all pairs: sums of heads are far less.
cdef double FAR = 1 << 29
cdef int32_t ALWAYS = 1 << 30
#: By the machine: 0 portable C, 1 AVX2, 2 AVX-512 with VNNI.
LEVEL = code_level()


def rounded(
    const double[:, ::1] values not None,
    Py_ssize_t first,
    Py_ssize_t last,
    double scale,
    int most,
    int8_t[:, ::1] numbers not None,
    Py_ssize_t at,
):
    """Write columns ``first`` to ``last`` as whole numbers of ``scale``, up to ``most``, into
    ``numbers`` from column ``at`` on. Return of each row the sum of the squared errors."""
    cdef Py_ssize_t i, k
    cdef double inverse = 1 / scale, value, whole, error
    cdef double[::1] lost
    if (
        not 0 <= first <= last <= values.shape[1]
        or numbers.shape[0] != values.shape[0]
        or not 0 <= at <= numbers.shape[1] - (last - first)
        or not 0 < most <= 127
    ):
        raise InvalidArgumentError(
            f"columns {first} to {last} of {values.shape[0]} x {values.shape[1]} numbers up to "
            f"{most}, to column {at} of {numbers.shape[0]} x {numbers.shape[1]}: they must fit"
        )
    result = np.zeros(values.shape[0], np.float64)
    lost = result
    with nogil:
        for i in range(values.shape[0]):
            for k in range(first, last):
                value = values[i, k]
                whole = value * inverse
                whole = whole if whole < most else most
                whole = whole if whole > -most else -most
                # Half up, whatever the mode of rounding is.
                numbers[i, at + k - first] = <int8_t> (<int32_t> (whole + 1024.5) - 1024)
                error = value - scale * numbers[i, at + k - first]
                lost[i] += error * error
    return result


@cython.final
cdef class CodePanels:
    """Queries, packed for comparison with any number of chunks. It is not thread-safe.

    Of each query: the whole numbers of its head and of all its code; the product that it must
    reach with a row whose length is 0 (``bounds``), and what its head loses more than usual for a
    row of length 1 (``excess``), both in units of products of heads; and, for whole codes, the unit
    of its products (``scales``), what is added to them (``rests``), and its length.

    ``usual``: what heads of queries lose usually for a row of length 1; ``longest``: the longest
    query; ``row_error``: what heads of rows lose usually; ``unit``: one divided by the unit of
    products of heads.
    """

    cdef uint8_t* panels
    cdef int32_t* limits
    cdef readonly Py_ssize_t count  # queries
    cdef readonly Py_ssize_t head
    cdef readonly Py_ssize_t tail
    cdef const int16_t[:, ::1] wholes
    cdef const double[:, ::1] terms
    cdef double usual
    cdef double longest
    cdef double row_error
    cdef double unit
    cdef int32_t[::1] found_queries
    cdef int32_t[::1] found_rows
    cdef int64_t[::1] found_numbers
    cdef object queries_found
    cdef object numbers_found

    def __cinit__(
        self,
        const int8_t[:, ::1] heads not None,
        const int16_t[:, ::1] wholes not None,
        const double[:, ::1] terms not None,
        double usual,
        double longest,
        double row_error,
        double unit,
    ):
        cdef Py_ssize_t padded, q, k
        self.count, self.head = heads.shape[0], heads.shape[1]
        self.tail = wholes.shape[1] - self.head
        if (
            self.head % 16 or self.head == 0 or self.tail % 16 or self.tail < 0
            or wholes.shape[0] != self.count
            or terms.shape[0] != 5 or terms.shape[1] != self.count
        ):
            raise InvalidArgumentError(
                f"{self.count} queries with heads of {self.head}, {wholes.shape[0]} codes of "
                f"{wholes.shape[1]}, {terms.shape[0]} x {terms.shape[1]} terms: give multiples of "
                "16 numbers, and five terms for each query"
            )
        self.wholes, self.terms = wholes, terms
        self.usual, self.longest, self.row_error = usual, longest, row_error
        self.unit = unit
        padded = (self.count + LANES - 1) // LANES * LANES
        self.panels = <uint8_t*> malloc(max(1, padded * self.head))
        self.limits = <int32_t*> malloc(max(1, padded) * sizeof(int32_t))
        if self.panels == NULL or self.limits == NULL:
            raise MemoryError(f"cannot allocate {self.count} queries")
        memset(self.panels, MIDDLE, max(1, padded * self.head))
        for q in range(self.count, padded):
            self.limits[q] = 0x7fffffff
        most = 2 * max(1, self.count) * MOST_ROWS + LANES
        self.queries_found = np.empty(most, np.int32)
        self.numbers_found = np.empty(most, np.int64)
        self.found_queries, self.found_numbers = self.queries_found, self.numbers_found
        self.found_rows = np.empty(most, np.int32)
        with nogil:
            for q in range(self.count):
                for k in range(self.head):
                    self.panels[
                        q // LANES * self.head * LANES + k // 4 * 4 * LANES + q % LANES * 4 + k % 4
                    ] = <uint8_t> (heads[q, k] + MIDDLE)

    def __init__(self, heads, wholes, terms, usual, longest, row_error, unit):
        pass

    def __dealloc__(self):
        free(self.panels)
        free(self.limits)

    def candidates(
        self,
        const uint8_t[::1] chunks not None,
        const int32_t[::1] ends not None,
        Py_ssize_t first,
        int level=-1,
    ):
        """Return the candidates in chunks from the one at ``first`` on: their queries, the numbers
        of their rows, the chunk at which to go on, and how many rows were looked at.

        Chunk i is ``chunks[ends[i]:ends[i + 1]]``. The next call overwrites the two arrays.
        ``level``: portable C (0), AVX2 (1) or AVX-512 with VNNI (2) instead of the best that the
        machine has.
        """
        cdef CodeTask task
        cdef Py_ssize_t at = first, size, count, i, room = self.found_queries.shape[0]
        cdef int64_t found = 0, before, number, looked = 0
        cdef int32_t rows
        cdef int32_t[::1] words
        cdef const uint8_t* chunk
        if level < 0 or level > code_level():
            level = code_level()
        if self.count == 0:
            return self.queries_found[:0], self.numbers_found[:0], ends.shape[0] - 1, 0
        task.panels, task.limits = self.panels, self.limits
        task.wholes = &self.wholes[0, 0]
        task.queries, task.head, task.tail = self.count, self.head, self.tail
        task.scales, task.rests = &self.terms[2, 0], &self.terms[3, 0]
        task.lengths = &self.terms[4, 0]
        task.found_queries, task.found_rows = &self.found_queries[0], &self.found_rows[0]
        words = np.empty(CODE_ROWS * self.head // 4, np.int32)
        task.words = &words[0]
        starts = np.empty(MOST_ROWS, np.int32)
        terms = np.empty(4 * MOST_ROWS, np.float32)
        while at < ends.shape[0] - 1:
            if not 0 <= ends[at] <= ends[at + 1] <= chunks.shape[0]:
                raise InvalidArgumentError(
                    f"chunk {at} goes from {ends[at]} to {ends[at + 1]} of {chunks.shape[0]} bytes"
                )
            size = ends[at + 1] - ends[at]
            rows = 0
            if size >= FRONT:
                chunk = &chunks[ends[at]]
                memcpy(&number, chunk, 8)
                memcpy(&rows, chunk + 8, 4)
            count = rows
            if not 0 < count <= <Py_ssize_t> MOST_ROWS or (
                size != FRONT + count * (self.head + self.tail + BESIDE)
            ):
                raise InvalidArgumentError(
                    f"a chunk of {size} bytes does not hold {count} codes of {self.head} and "
                    f"{self.tail} numbers"
                )
            if found + count * self.count + LANES > room:
                break
            before = found
            found = self.look(&task, chunk, count, found, starts, terms, level)
            for i in range(before, found):
                self.found_numbers[i] = number + self.found_rows[i]
            looked += count
            at += 1
        return self.queries_found[:found], self.numbers_found[:found], at, looked

    cdef int64_t look(
        self,
        CodeTask* task,
        const uint8_t* chunk,
        Py_ssize_t count,
        int64_t found,
        int32_t[::1] starts,
        float[::1] terms,
        int level,
    ) noexcept:
        """Add the candidates of a chunk."""
        cdef float reach
        cdef double value
        cdef int32_t total
        cdef Py_ssize_t i, q
        cdef const uint8_t* beside = chunk + FRONT + count * (self.head + self.tail)
        with nogil:
            memcpy(&reach, chunk + 12, 4)
            task.heads = <const int8_t*> (chunk + FRONT)
            task.tails = task.heads + count * self.head
            task.count = count
            # Rows' terms may lie at any byte.
            memcpy(&terms[0], beside, 4 * count * sizeof(float))
            task.halves, task.errors = &terms[0], &terms[3 * count]
            task.starts = &starts[0]
            for i in range(count):
                memcpy(&total, beside + (4 * count + i) * 4, 4)
                value = self.usual * (<double> terms[count + i] + terms[2 * count + i])
                if terms[2 * count + i] > self.row_error:
                    value += self.longest * (terms[2 * count + i] - self.row_error)
                value = ceil((value - terms[i]) * self.unit)
                if not value < FAR:
                    starts[i] = ALWAYS
                else:
                    starts[i] = <int32_t> (value if value > -FAR else -FAR)
                starts[i] -= MIDDLE * total
            for q in range(self.count):
                value = floor(self.terms[0, q] - self.terms[1, q] * reach)
                if not value > -FAR:
                    self.limits[q] = -ALWAYS
                else:
                    self.limits[q] = <int32_t> (value if value < FAR else FAR)
            found = code_run(task, found, level)
        return found
