"""Pairs of points that may be close, of a few points and of many that lie in a tree of boxes.

- A node's box holds its points. A point looks into the nodes whose boxes it reaches.
- A node is halved by the longest side of its points (Friedman, Bentley and Finkel, "An Algorithm
  for Finding Best Matches in Logarithmic Expected Time", 1977). All leaves but the last are full.
- Components are float32, less an origin. The reach is widened by what that loses, so every close
  pair is found. Which others are depends on the machine.
- Nodes stand in the order of a walk that visits a node before its parts, and the left part first.
"""

cimport cython
from libc.math cimport INFINITY, fabs, sqrt
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define LEAF 32

    typedef struct { int32_t place, first, stop; } NearNode;
    typedef struct {
        int64_t d, padded, queries, leaves;
        const float* points; const int32_t* order;
        const float* rows; const float* boxes; const int32_t* row_order;
        float bound;
        int32_t* found_queries; int32_t* found_rows;
        int64_t compared, at, size;
        NearNode stack[64];
    } NearTask;

    typedef float B4 __attribute__((vector_size(16)));
    typedef int32_t C4 __attribute__((vector_size(16)));
    typedef float B8 __attribute__((vector_size(32)));
    typedef int32_t C8 __attribute__((vector_size(32)));
    #define LANES 8
    #define VECTORS (LEAF / LANES)

    #define NEAR_MAX(V, C, A, B) \\
        ({ const V a_ = (A), b_ = (B); const C m_ = a_ > b_; (V) (((C) a_ & m_) | ((C) b_ & ~m_)); })
    #define NEAR_ABS(V, C, T) ((V) ((C) (T) & 0x7fffffff))
    #define ADD_SQUARE(V, C, S, T) (S) += (T) * (T);
    #define ADD_LENGTH(V, C, S, T) (S) += NEAR_ABS(V, C, T);
    #define ADD_GREATEST(V, C, S, T) (S) = NEAR_MAX(V, C, S, NEAR_ABS(V, C, T));
    #define SUM_OF(A) ((A)[0] + (A)[1] + ((A)[2] + (A)[3]))
    #define MOST_OF(A) NEAR_MOST(NEAR_MOST((A)[0], (A)[1]), NEAR_MOST((A)[2], (A)[3]))
    #define NEAR_MOST(A, B) ((A) > (B) ? (A) : (B))

    /* The walk of one kind of distance. ALL: what four parts of a distance come to. */
    #define DEFINE_NEAR(NAME, TARGET, ADD, ALL)                                                    \\
    TARGET static int NAME##_box(const float* a, const float* box, int64_t padded, float bound)    \\
    {                                                                                              \\
        B4 far = {0};                                                                              \\
        for (int64_t k = 0; k < padded; k += 4) {                                                  \\
            B4 v, low, high;                                                                       \\
            memcpy(&v, a + k, sizeof v);                                                           \\
            memcpy(&low, box + k, sizeof low);                                                     \\
            memcpy(&high, box + padded + k, sizeof high);                                          \\
            const B4 t = NEAR_MAX(B4, C4, NEAR_MAX(B4, C4, low - v, v - high), (B4) {0});          \\
            ADD(B4, C4, far, t)                                                                    \\
        }                                                                                          \\
        return ALL(far) <= bound;                                                                  \\
    }                                                                                              \\
    TARGET static int64_t NAME##_leaf(NearTask* t, int32_t query, const float* a, int64_t leaf,    \\
                                      int64_t n)                                                   \\
    {                                                                                              \\
        const float* b = t->rows + leaf * LEAF * t->d;                                             \\
        const B8 bound = (B8) {0} + t->bound;                                                      \\
        B8 s[VECTORS] = {{0}};                                                                     \\
        C8 any = {0};                                                                              \\
        int32_t is_any[LANES], hit = 0;                                                            \\
        float far[LEAF];                                                                           \\
        t->compared += LEAF;                                                                       \\
        for (int64_t k = 0; k < t->d; k++) {                                                       \\
            const B8 v = (B8) {0} + a[k];                                                          \\
            _Pragma("GCC unroll 4")                                                                \\
            for (int l = 0; l < VECTORS; l++) {                                                    \\
                B8 u;                                                                              \\
                memcpy(&u, b + k * LEAF + l * LANES, sizeof u);                                    \\
                u -= v;                                                                            \\
                ADD(B8, C8, s[l], u)                                                               \\
            }                                                                                      \\
        }                                                                                          \\
        _Pragma("GCC unroll 4")                                                                    \\
        for (int l = 0; l < VECTORS; l++) any |= s[l] <= bound;                                    \\
        memcpy(is_any, &any, sizeof any);                                                          \\
        for (int l = 0; l < LANES; l++) hit |= is_any[l];                                          \\
        if (!hit) return n;                                                                        \\
        memcpy(far, s, sizeof s);                                                                  \\
        for (int l = 0; l < LEAF; l++) {                                                           \\
            t->found_queries[n] = query;                                                           \\
            t->found_rows[n] = t->row_order[leaf * LEAF + l];                                      \\
            n += far[l] <= t->bound;                                                               \\
        }                                                                                          \\
        return n;                                                                                  \\
    }                                                                                              \\
    /* Go on with the queries until there is no room for the pairs of a leaf. */                   \\
    TARGET static int64_t NAME(NearTask* t, int64_t room)                                          \\
    {                                                                                              \\
        const int64_t padded = t->padded, step = 2 * padded;                                       \\
        int64_t n = 0;                                                                             \\
        for (; t->at < t->queries; t->at++) {                                                      \\
            const float* a = t->points + t->at * padded;                                           \\
            if (!t->size && NAME##_box(a, t->boxes, padded, t->bound))                             \\
                t->stack[t->size++] = (NearNode) {0, 0, (int32_t) t->leaves};                      \\
            while (t->size) {                                                                      \\
                const NearNode node = t->stack[t->size - 1];                                       \\
                const int32_t half = (node.stop - node.first + 1) / 2;                             \\
                const int32_t left = node.place + 1, right = node.place + 2 * half;                \\
                if (node.stop - node.first == 1) {                                                 \\
                    if (n + LEAF > room) return n;                                                 \\
                    t->size--;                                                                     \\
                    n = NAME##_leaf(t, t->order[t->at], a, node.first, n);                         \\
                    continue;                                                                      \\
                }                                                                                  \\
                t->size--;                                                                         \\
                if (NAME##_box(a, t->boxes + right * step, padded, t->bound))                      \\
                    t->stack[t->size++] = (NearNode) {right, node.first + half, node.stop};        \\
                if (NAME##_box(a, t->boxes + left * step, padded, t->bound))                       \\
                    t->stack[t->size++] = (NearNode) {left, node.first, node.first + half};        \\
            }                                                                                      \\
        }                                                                                          \\
        return n;                                                                                  \\
    }
    #define DEFINE_KINDS(LEVEL, TARGET)                                                            \\
        DEFINE_NEAR(squares_##LEVEL, TARGET, ADD_SQUARE, SUM_OF)                                   \\
        DEFINE_NEAR(lengths_##LEVEL, TARGET, ADD_LENGTH, SUM_OF)                                   \\
        DEFINE_NEAR(greatest_##LEVEL, TARGET, ADD_GREATEST, MOST_OF)
    DEFINE_KINDS(portable, )
    #if defined(__x86_64__) && defined(__GNUC__)
    DEFINE_KINDS(avx2, __attribute__((target("avx2,fma"))))
    static int near_level(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }
    #define NEAR_OF(KIND, LEVEL) ((LEVEL) ? KIND##_avx2 : KIND##_portable)
    #else
    static int near_level(void) { return 0; }
    #define NEAR_OF(KIND, LEVEL) KIND##_portable
    #endif

    static int64_t near_walk(NearTask* t, int kind, int level, int64_t room)
    {
        switch (kind) {
        case 0: return NEAR_OF(squares, level)(t, room);
        case 1: return NEAR_OF(lengths, level)(t, room);
        default: return NEAR_OF(greatest, level)(t, room);
        }
    }

    typedef struct { float value; int32_t place; } NearKey;

    /* Order keys so that the first ``wanted`` are not greater than the others (Hoare's FIND). */
    static void near_halve(NearKey* keys, int64_t count, int64_t wanted, uint64_t* random)
    {
        int64_t low = 0, high = count - 1;
        while (low < high) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            const float pivot = keys[low + (int64_t) ((*random >> 33) % (high - low + 1))].value;
            int64_t i = low, j = high;
            while (i <= j) {
                while (keys[i].value < pivot) i++;
                while (keys[j].value > pivot) j--;
                if (i <= j) {
                    const NearKey other = keys[i];
                    keys[i++] = keys[j];
                    keys[j--] = other;
                }
            }
            if (wanted <= j) high = j;
            else if (wanted >= i) low = i;
            else return;
        }
    }
    """
    ctypedef struct NearTask:
        int64_t d
        int64_t padded
        int64_t queries
        int64_t leaves
        const float* points
        const int32_t* order
        const float* rows
        const float* boxes
        const int32_t* row_order
        float bound
        int32_t* found_queries
        int32_t* found_rows
        int64_t compared
        int64_t at
    ctypedef struct NearKey:
        float value
        int32_t place
    int near_level() noexcept nogil
    int64_t near_walk(NearTask* task, int kind, int level, int64_t room) noexcept nogil
    void near_halve(NearKey* keys, int64_t count, int64_t wanted, uint64_t* random) noexcept nogil

cdef enum:
    LEAF = 32
    SAMPLE = 64  # points that are looked at for the longest side of a node

#: How distances are measured.
SQUARES = 0  #: the root of the sum of the squares of differences
LENGTHS = 1  #: the sum of the differences
GREATEST = 2  #: the greatest difference
#: By the machine: 0 portable C, 1 AVX2.
LEVEL = near_level()
#: Components that are no further from the origin; float32 holds the squares of their differences.
FURTHEST = 1e15
#: Unit of rounding in float32, with room for the rounding of the bound itself.
cdef double UNIT = 1.1 / (1 << 24)
#: What float32 loses at most where it rounds to nothing.
cdef double TINY = 1e-44


@cython.final
cdef class PointTree:
    """Points in a tree. It does not change."""

    cdef readonly Py_ssize_t count  # points
    cdef readonly Py_ssize_t width  # components
    cdef readonly double longest  # the greatest component, less the origin
    cdef Py_ssize_t leaves
    cdef Py_ssize_t padded  # components of a side of a box: a multiple of 4, those beyond are 0
    cdef float* points  # leaf by leaf, component by component; infinite beyond the last point
    cdef float* boxes  # by node the least components, and the greatest
    cdef int32_t* order  # by place in the leaves, which point it is

    def __cinit__(self, const double[:, ::1] points not None, const double[::1] origin not None):
        cdef Py_ssize_t n = points.shape[0], d = points.shape[1], i, k
        cdef NearKey* keys
        cdef float* plain
        cdef double value
        cdef bint is_near = True
        self.count, self.width = n, d
        self.leaves = (n + LEAF - 1) // LEAF
        self.padded = (d + 3) // 4 * 4
        if origin.shape[0] != d or d < 1 or n > 1 << 30:
            raise InvalidArgumentError(
                f"{n} points of {d} components, an origin of {origin.shape[0]}: give at most 2**30 "
                "points, and an origin of as many components, at least one"
            )
        self.points = <float*> malloc(max(1, self.leaves * LEAF * d) * sizeof(float))
        self.boxes = <float*> malloc(max(1, 2 * self.leaves * 2 * self.padded) * sizeof(float))
        self.order = <int32_t*> malloc(max(1, self.leaves * LEAF) * sizeof(int32_t))
        keys = <NearKey*> malloc(max(1, n) * sizeof(NearKey))
        plain = <float*> malloc(max(1, n * d) * sizeof(float))
        try:
            if not (self.points and self.boxes and self.order and keys and plain):
                raise MemoryError(f"cannot allocate a tree of {n} points")
            with nogil:
                for i in range(n):
                    keys[i].place = <int32_t> i
                    for k in range(d):
                        value = points[i, k] - origin[k]
                        is_near &= fabs(value) <= FURTHEST_C
                        self.longest = max(self.longest, fabs(value))
                        plain[i * d + k] = <float> value
            if not is_near:
                raise InvalidArgumentError(
                    f"a component lies further than {FURTHEST:g} from the origin, or is no number; "
                    "leave such points out"
                )
            if n:
                with nogil:
                    self.grow(keys, plain)
        finally:
            free(keys)
            free(plain)

    def __init__(self, points, origin):
        pass

    def __dealloc__(self):
        free(self.points)
        free(self.boxes)
        free(self.order)

    @property
    def nbytes(self):
        """Bytes it takes."""
        return self.leaves * (LEAF * (self.width + 1) + 4 * self.padded) * 4

    cdef void grow(self, NearKey* keys, const float* plain) noexcept nogil:
        """Halve nodes until they are leaves, the left part first."""
        cdef int64_t stack[3 * 64]
        cdef int64_t depth = 1, node, first, stop, half
        cdef Py_ssize_t begin, end, middle
        cdef uint64_t random = 88172645463325252u
        stack[0], stack[1], stack[2] = 0, 0, self.leaves
        while depth:
            depth -= 1
            node, first, stop = stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2]
            begin, end = first * LEAF, min(stop * LEAF, self.count)
            if stop - first == 1:
                self.fill(node, first, keys + begin, end - begin, plain)
                continue
            half = (stop - first + 1) // 2
            middle = (first + half) * LEAF
            self.set_values(keys + begin, end - begin, plain)
            near_halve(keys + begin, end - begin, middle - begin, &random)
            stack[3 * depth], stack[3 * depth + 1] = node + 2 * half, first + half
            stack[3 * depth + 2] = stop
            depth += 1
            stack[3 * depth], stack[3 * depth + 1] = node + 1, first
            stack[3 * depth + 2] = first + half
            depth += 1
        self.enclose(0, 0, self.leaves)

    cdef void set_values(self, NearKey* keys, Py_ssize_t count, const float* plain) noexcept nogil:
        """Let keys be ordered by the component in which a sample of them differs most."""
        cdef Py_ssize_t d = self.width, step = max(1, count // SAMPLE), i, k, widest = 0
        cdef float low, high, value, most = -1
        for k in range(d):
            low, high = <float> INFINITY, -<float> INFINITY
            i = 0
            while i < count:
                value = plain[keys[i].place * d + k]
                low, high = min(low, value), max(high, value)
                i += step
            if high - low > most:
                most, widest = high - low, k
        for i in range(count):
            keys[i].value = plain[keys[i].place * d + widest]

    cdef void fill(
        self, int64_t node, int64_t leaf, const NearKey* keys, Py_ssize_t count, const float* plain
    ) noexcept nogil:
        """Write a leaf and its box."""
        cdef Py_ssize_t d = self.width, padded = self.padded, i, k
        cdef float* points = self.points + leaf * LEAF * d
        cdef float* box = self.boxes + node * 2 * padded
        cdef int32_t* order = self.order + leaf * LEAF
        cdef float value
        for i in range(LEAF):
            order[i] = keys[i].place if i < count else 0
        for k in range(d):
            box[k], box[padded + k] = <float> INFINITY, -<float> INFINITY
            for i in range(LEAF):
                if i >= count:
                    points[k * LEAF + i] = <float> INFINITY
                    continue
                value = plain[keys[i].place * d + k]
                points[k * LEAF + i] = value
                box[k], box[padded + k] = min(box[k], value), max(box[padded + k], value)
        for k in range(d, padded):
            box[k] = box[padded + k] = 0

    cdef void enclose(self, int64_t node, int64_t first, int64_t stop) noexcept nogil:
        """Set the boxes of a node and the nodes below from those of the leaves. It calls itself
        once for each level."""
        cdef int64_t half = (stop - first + 1) // 2
        cdef Py_ssize_t padded = self.padded, k
        cdef float* box = self.boxes + node * 2 * padded
        cdef const float* left = self.boxes + (node + 1) * 2 * padded
        cdef const float* right = self.boxes + (node + 2 * half) * 2 * padded
        if stop - first == 1:
            return
        self.enclose(node + 1, first, first + half)
        self.enclose(node + 2 * half, first + half, stop)
        for k in range(padded):
            box[k] = min(left[k], right[k])
            box[padded + k] = max(left[padded + k], right[padded + k])

cdef double FURTHEST_C = FURTHEST


@cython.final
cdef class NearPairs:
    """The pairs of two trees that may be at most ``reach`` apart, in blocks. Both trees have one
    origin. The points of ``queries``, which are best the fewer, look into the tree of ``rows``."""

    cdef readonly int64_t compared  # pairs of points
    cdef PointTree queries
    cdef PointTree rows
    cdef int kind
    cdef int level
    cdef NearTask task
    cdef float* points  # the queries one by one, in the order of their tree

    def __cinit__(
        self, PointTree queries not None, PointTree rows not None, int kind, double reach,
        int level=-1,
    ):
        """``level``: portable C (0) or AVX2 (1) instead of the best that the machine has."""
        cdef Py_ssize_t d = queries.width, padded = queries.padded, i, k
        cdef double bound
        cdef const float* leaf
        if rows.width != d or not 0 <= kind <= 2 or not reach >= 0:
            raise InvalidArgumentError(
                f"points of {d} and {rows.width} components, kind {kind}, reach {reach}: give "
                "points of one dimension, a kind from 0 to 2, and a reach that is not negative"
            )
        self.queries, self.rows, self.kind = queries, rows, kind
        self.level = near_level() if level < 0 else min(level, near_level())
        bound = (1 if kind == 2 else d if kind == 1 else sqrt(<double> d))
        bound *= 2 * (UNIT * max(queries.longest, rows.longest) + TINY)
        bound = (reach + bound) * (1 + 2 * (d + 16) * UNIT)
        # Float32 holds all distances that there are, and none is infinite.
        bound = min(bound, 1e18)
        self.task.bound = <float> ((bound * bound if kind == 0 else bound) * (1 + 4 * UNIT))
        self.task.bound += <float> 1e-37
        self.task.d, self.task.padded, self.task.leaves = d, padded, rows.leaves
        self.task.rows, self.task.boxes, self.task.row_order = rows.points, rows.boxes, rows.order
        self.task.queries = queries.count if rows.count else 0
        self.points = <float*> malloc(max(1, queries.count * padded) * sizeof(float))
        if self.points == NULL:
            raise MemoryError(f"cannot allocate {queries.count} points")
        with nogil:
            for i in range(queries.count):
                leaf = queries.points + i // LEAF * LEAF * d + i % LEAF
                for k in range(padded):
                    self.points[i * padded + k] = leaf[k * LEAF] if k < d else 0
        self.task.points, self.task.order = self.points, queries.order

    def __init__(self, queries, rows, kind, reach, level=-1):
        pass

    def __dealloc__(self):
        free(self.points)

    def next(self, Py_ssize_t most):
        """Return the next pairs, as places of queries and beside them of rows: ``most`` at most,
        or 32. None: there are no more."""
        cdef int64_t found = 0, room = max(most, LEAF)
        cdef int32_t[::1] queries, rows
        if self.task.at >= self.task.queries:
            return None
        queries_found, rows_found = np.empty(room + 1, np.int32), np.empty(room + 1, np.int32)
        queries, rows = queries_found, rows_found
        self.task.found_queries, self.task.found_rows = &queries[0], &rows[0]
        with nogil:
            found = near_walk(&self.task, self.kind, self.level, room)
        self.compared = self.task.compared
        return queries_found[:found].copy(), rows_found[:found].copy()
