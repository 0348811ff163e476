"""Distances of pairs of vectors, in float64 and the same on every machine.

A sum over components is four sums: of the components 0, 4, 8 and so on, of 1, 5, 9, of 2, 6, 10, of
3, 7, 11. The result is (first + second) + (third + fourth). Nothing is fused, so this order alone
decides what is rounded.
"""

cimport cython
from libc.math cimport acos, asin, cos, fabs, isfinite, sin, sqrt
from libc.stdint cimport int32_t

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
    """

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


cdef double squares(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    cdef double s[4]
    cdef double t
    cdef Py_ssize_t k = 0, l
    s[0] = s[1] = s[2] = s[3] = 0
    while k + 4 <= d:
        for l in range(4):
            t = <double> a[k + l] - <double> b[k + l]
            s[l] += t * t
        k += 4
    for l in range(d - k):
        t = <double> a[k + l] - <double> b[k + l]
        s[l] += t * t
    return (s[0] + s[1]) + (s[2] + s[3])


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


cdef double cosine(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    """The cosine of the angle, from -1 to 1; of equal vectors exactly 1."""
    cdef double first = product(a, a, d), second = product(b, b, d), norms = first * second, found
    if isfinite(norms) and norms > 1e-280:
        found = product(a, b, d) / sqrt(norms)
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


cdef double length(const real* a, const real* b, Py_ssize_t d) noexcept nogil:
    """The length of the difference; squares that are no numbers are those of parts of it."""
    cdef double found = squares(a, b, d), most, total = 0, t
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
    with nogil:
        for i in range(n):
            x, y = &a[a_places[i], 0], &b[b_places[i], 0]
            if metric == L2:
                found[i] = length(x, y, d)
            elif metric == COSINE:
                found[i] = 1 - cosine(x, y, d)
            elif metric == ANGULAR:
                found[i] = acos(cosine(x, y, d)) / PI
            elif metric == MANHATTAN:
                found[i] = differences(x, y, d)
            elif metric == CHEBYSHEV:
                found[i] = greatest(x, y, d)
            elif metric == HAMMING:
                found[i] = differing(x, y, d)
            else:
                found[i] = great_circle(x, y)
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
