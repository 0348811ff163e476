"""Distances of pairs of vectors, in float64 and the same on every machine.

A sum over components is four sums: of the components 0, 4, 8 and so on, of 1, 5, 9, of 2, 6, 10, of
3, 7, 11. The result is (first + second) + (third + fourth). Nothing is fused, so this order alone
decides what is rounded.
"""

cimport cython
from libc.math cimport acos, asin, cos, fabs, isfinite, sin, sqrt
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

ctypedef fused real:
    float
    double

cdef extern from *:
    """
    #ifdef __clang__
    #pragma STDC FP_CONTRACT OFF
    #elif defined(__GNUC__)
    #pragma GCC optimize ("fp-contract=off")
    #endif
    #include <stdint.h>
    #include <string.h>
    typedef double D4 __attribute__((vector_size(32)));
    typedef float F4 __attribute__((vector_size(16)));
    #define PAIRS 4

    /* The four sums of each pair, of several pairs at once: an addition waits for the one before,
       and those of other pairs do not. T: a component, V: four of them. */
    #define DEFINE_SUMS(NAME, TARGET, T, V, TERM)                                                  \
    TARGET static void NAME(const T* a, const int32_t* a_places, const T* b,                       \
                            const int32_t* b_places, int64_t count, int64_t d, double* found)      \
    {                                                                                              \
        for (int64_t at = 0; at < count; at += PAIRS) {                                            \
            const int64_t here = count - at < PAIRS ? count - at : PAIRS;                          \
            const T *x[PAIRS], *y[PAIRS];                                                          \
            D4 sums[PAIRS];                                                                        \
            int64_t k = 0;                                                                         \
            for (int64_t p = 0; p < PAIRS; p++) {                                                  \
                const int64_t pair = at + (p < here ? p : 0);                                      \
                x[p] = a + a_places[pair] * d;                                                     \
                y[p] = b + b_places[pair] * d;                                                     \
                sums[p] = (D4) {0};                                                                \
            }                                                                                      \
            for (; k + 4 <= d; k += 4) {                                                           \
                _Pragma("GCC unroll 4")                                                            \
                for (int p = 0; p < PAIRS; p++) {                                                  \
                    V u, v;                                                                        \
                    memcpy(&u, x[p] + k, sizeof u);                                                \
                    memcpy(&v, y[p] + k, sizeof v);                                                \
                    const D4 s = __builtin_convertvector(u, D4);                                   \
                    const D4 t = __builtin_convertvector(v, D4);                                   \
                    sums[p] += TERM(s, t);                                                         \
                }                                                                                  \
            }                                                                                      \
            for (int64_t p = 0; p < here; p++) {                                                   \
                double four[4];                                                                    \
                memcpy(four, &sums[p], sizeof four);                                               \
                for (int64_t l = 0; k + l < d; l++) {                                              \
                    const double s = (double) x[p][k + l], t = (double) y[p][k + l];               \
                    four[l] += TERM(s, t);                                                         \
                }                                                                                  \
                found[at + p] = (four[0] + four[1]) + (four[2] + four[3]);                         \
            }                                                                                      \
        }                                                                                          \
    }
    #define TERM_PRODUCT(S, T) ((S) * (T))
    #define TERM_SQUARE(S, T) (((S) - (T)) * ((S) - (T)))
    #define DEFINE_FOR(KIND, TARGET, TERM)                                                         \
        DEFINE_SUMS(KIND##_float, TARGET, float, F4, TERM)                                         \
        DEFINE_SUMS(KIND##_double, TARGET, double, D4, TERM)
    DEFINE_FOR(products_portable, , TERM_PRODUCT)
    DEFINE_FOR(squares_portable, , TERM_SQUARE)
    #if defined(__x86_64__) && defined(__GNUC__)
    DEFINE_FOR(products_avx2, __attribute__((target("avx2"))), TERM_PRODUCT)
    DEFINE_FOR(squares_avx2, __attribute__((target("avx2"))), TERM_SQUARE)
    static int has_avx2(void) { __builtin_cpu_init(); return __builtin_cpu_supports("avx2") != 0; }
    #define SUMS_OF(KIND, TYPE) (has_avx2() ? KIND##_avx2_##TYPE : KIND##_portable_##TYPE)
    #else
    #define SUMS_OF(KIND, TYPE) KIND##_portable_##TYPE
    #endif
    #define DEFINE_BEST(KIND, T)                                                                   \
    static void KIND##_##T(const T* a, const int32_t* a_places, const T* b,                        \
                           const int32_t* b_places, int64_t count, int64_t d, double* found)       \
    {                                                                                              \
        SUMS_OF(KIND, T)(a, a_places, b, b_places, count, d, found);                               \
    }
    DEFINE_BEST(products, float)
    DEFINE_BEST(products, double)
    DEFINE_BEST(squares, float)
    DEFINE_BEST(squares, double)
    """
    void products_float(const float*, const int32_t*, const float*, const int32_t*, int64_t,
                        int64_t, double*) noexcept nogil
    void products_double(const double*, const int32_t*, const double*, const int32_t*, int64_t,
                         int64_t, double*) noexcept nogil
    void squares_float(const float*, const int32_t*, const float*, const int32_t*, int64_t,
                       int64_t, double*) noexcept nogil
    void squares_double(const double*, const int32_t*, const double*, const int32_t*, int64_t,
                        int64_t, double*) noexcept nogil

cdef enum:
    L2 = 0
    COSINE = 1
    ANGULAR = 2
    MANHATTAN = 3
    CHEBYSHEV = 4
    HAMMING = 5
    HAVERSINE = 6

#: Metres; the mean radius of the earth.
EARTH_RADIUS = 6371008.8
cdef double RADIUS = EARTH_RADIUS
cdef double PI = 3.141592653589793


cdef double product(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    cdef double s[4]
    cdef Py_ssize_t k = 0, l
    s[0] = s[1] = s[2] = s[3] = 0
    while k + 4 <= d:
        for l in range(4):
            s[l] += <double> a[k + l] * <double> b[k + l]
        k += 4
    for l in range(d - k):
        s[l] += <double> a[k + l] * <double> b[k + l]
    return (s[0] + s[1]) + (s[2] + s[3])


cdef double differences(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    cdef double s[4]
    cdef Py_ssize_t k = 0, l
    s[0] = s[1] = s[2] = s[3] = 0
    while k + 4 <= d:
        for l in range(4):
            s[l] += fabs(<double> a[k + l] - <double> b[k + l])
        k += 4
    for l in range(d - k):
        s[l] += fabs(<double> a[k + l] - <double> b[k + l])
    return (s[0] + s[1]) + (s[2] + s[3])


cdef double greatest(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    cdef double found = 0, t
    cdef Py_ssize_t k
    for k in range(d):
        t = fabs(<double> a[k] - <double> b[k])
        if t > found:
            found = t
    return found


cdef double differing(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    cdef Py_ssize_t found = 0, k
    for k in range(d):
        found += a[k] != b[k]
    return <double> found


cdef double cosine(
    double both, double norms, const real* a, const real* b, Py_ssize_t d
) noexcept nogil:
    """The cosine of the angle, from -1 to 1, from the product of two vectors and that of their
    squared lengths; of equal vectors exactly 1."""
    cdef double found
    if isfinite(norms) and norms > 1e-280:
        found = both / sqrt(norms)
    else:
        found = scaled_cosine(a, b, d)
    return 1 if found > 1 else -1 if found < -1 else found


cdef double scaled_cosine(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    """The same of vectors whose squares are no numbers: each is divided by its greatest
    component."""
    cdef double most = 0, other = 0, first = 0, second = 0, both = 0, x, y
    cdef Py_ssize_t k
    for k in range(d):
        most = max(most, fabs(<double> a[k]))
        other = max(other, fabs(<double> b[k]))
    for k in range(d):
        x, y = <double> a[k] / most, <double> b[k] / other
        first += x * x
        second += y * y
        both += x * y
    return both / sqrt(first * second)


cdef double length(double found, const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    """The length of the difference, from its square; a square that is no number is that of a part
    of it."""
    cdef double most, total = 0, t
    cdef Py_ssize_t k
    if isfinite(found) and found > 1e-280:
        return sqrt(found)
    most = greatest(a, b, d)
    if most == 0 or not isfinite(most):
        return most
    for k in range(d):
        t = (<double> a[k] - <double> b[k]) / most
        total += t * t
    return most * sqrt(total)


cdef double squared_length(const real* a, Py_ssize_t d, double* known) noexcept nogil:
    """Of a vector, remembered in ``known``, which is negative before."""
    if known[0] < 0:
        known[0] = product(a, a, d)
    return known[0]


cdef double great_circle(const real* a, const real* b) noexcept nogil:
    """Of points [longitude, latitude] in degrees."""
    cdef double to_radians = PI / 180
    cdef double here = <double> a[1] * to_radians, there = <double> b[1] * to_radians
    cdef double up = sin((there - here) / 2)
    cdef double along = sin((<double> b[0] - <double> a[0]) * to_radians / 2)
    cdef double found = up * up + cos(here) * cos(there) * along * along
    return 2 * RADIUS * asin(sqrt(1 if found > 1 else 0 if found < 0 else found))


def distances(
    int metric,
    const real[:, ::1] a not None,
    const int32_t[::1] a_places not None,
    const real[:, ::1] b not None,
    const int32_t[::1] b_places not None,
):
    """Return the distances of the pairs ``a[a_places[i]], b[b_places[i]]``.

    ``metric`` is one of L2 (0), cosine (1), angular (2; the angle over pi), manhattan (3),
    chebyshev (4), hamming (5; a count) and haversine (6; metres, of [longitude, latitude]).
    Vectors are finite, and none is zero under cosine and angular.
    """
    cdef Py_ssize_t n = a_places.shape[0], d = a.shape[1], i
    cdef const real* x
    cdef const real* y
    cdef double* known = NULL
    cdef double norms
    cdef double[::1] found
    if b_places.shape[0] != n or b.shape[1] != d or not 0 <= metric <= 6:
        raise InvalidArgumentError(
            f"metric {metric} of {n} and {b_places.shape[0]} places, {d} and {b.shape[1]} "
            "components: give places in pairs, vectors of one dimension, and a metric from 0 to 6"
        )
    if metric == HAVERSINE and d != 2:
        raise InvalidArgumentError(f"{d} components: points of the earth have two")
    result = np.empty(n, np.float64)
    if n == 0 or d == 0:
        result[:] = 0
        return result
    for i in range(n):
        if not (0 <= a_places[i] < a.shape[0] and 0 <= b_places[i] < b.shape[0]):
            raise InvalidArgumentError(
                f"pair {i} is of the places {a_places[i]} and {b_places[i]}, of {a.shape[0]} and "
                f"{b.shape[0]} vectors"
            )
    found = result
    if metric == COSINE or metric == ANGULAR:
        known = <double*> malloc((a.shape[0] + b.shape[0]) * sizeof(double))
        if known == NULL:
            raise MemoryError(f"no memory for the lengths of {a.shape[0] + b.shape[0]} vectors")
        for i in range(a.shape[0] + b.shape[0]):
            known[i] = -1
    with nogil:
        if metric == L2:
            if real is float:
                squares_float(&a[0, 0], &a_places[0], &b[0, 0], &b_places[0], n, d, &found[0])
            else:
                squares_double(&a[0, 0], &a_places[0], &b[0, 0], &b_places[0], n, d, &found[0])
        elif known != NULL:
            if real is float:
                products_float(&a[0, 0], &a_places[0], &b[0, 0], &b_places[0], n, d, &found[0])
            else:
                products_double(&a[0, 0], &a_places[0], &b[0, 0], &b_places[0], n, d, &found[0])
        for i in range(n):
            x, y = &a[a_places[i], 0], &b[b_places[i], 0]
            if metric == L2:
                found[i] = length(found[i], x, y, d)
            elif known != NULL:
                norms = squared_length(x, d, known + a_places[i]) * squared_length(
                    y, d, known + a.shape[0] + b_places[i]
                )
                found[i] = cosine(found[i], norms, x, y, d)
                found[i] = 1 - found[i] if metric == COSINE else acos(found[i]) / PI
            elif metric == MANHATTAN:
                found[i] = differences(x, y, d)
            elif metric == CHEBYSHEV:
                found[i] = greatest(x, y, d)
            elif metric == HAMMING:
                found[i] = differing(x, y, d)
            else:
                found[i] = great_circle(x, y)
    free(known)
    return result


def squared_norms(const real[:, ::1] rows not None):
    """Return of each row the sum of its squares."""
    cdef Py_ssize_t i
    cdef double[::1] found
    result = np.zeros(rows.shape[0], np.float64)
    found = result
    if rows.shape[1]:
        with nogil:
            for i in range(rows.shape[0]):
                found[i] = product(&rows[i, 0], &rows[i, 0], rows.shape[1])
    return result


def common(
    const int32_t[::1] a not None,
    const int32_t[::1] a_ends not None,
    const int32_t[::1] a_places not None,
    const int32_t[::1] b not None,
    const int32_t[::1] b_ends not None,
    const int32_t[::1] b_places not None,
):
    """Return of each pair of sets how many members they share.

    Set i holds ``a[a_ends[i]:a_ends[i + 1]]``, which ascend and are distinct; ``b`` alike.
    """
    cdef Py_ssize_t n = a_places.shape[0], i
    cdef int32_t x, x_end, y, y_end, both
    cdef int32_t[::1] found
    result = np.empty(n, np.int32)
    found = result
    with nogil:
        for i in range(n):
            x, x_end = a_ends[a_places[i]], a_ends[a_places[i] + 1]
            y, y_end = b_ends[b_places[i]], b_ends[b_places[i] + 1]
            both = 0
            while x < x_end and y < y_end:
                if a[x] == b[y]:
                    both += 1
                    x += 1
                    y += 1
                elif a[x] < b[y]:
                    x += 1
                else:
                    y += 1
            found[i] = both
    return result
