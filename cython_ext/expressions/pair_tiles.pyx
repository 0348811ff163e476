"""Which pairs of rows a comparison of DOUBLE arithmetic may hold for, without an array of all pairs.

An expression is a postfix program. It runs for one left row beside a tile of right rows, whose
columns and intermediate results stay in the first cache. What depends on the left row alone is
computed once a tile. Sums and products are rounded one by one, as Spark rounds them.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

import numpy as np

from lsmstate.cython_ext.errors import InvalidArgumentError

cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #define PAIR_TILE 256
    #define PAIR_DEPTH 16

    enum { PAIR_CONSTANT, PAIR_LEFT, PAIR_RIGHT, PAIR_ADD, PAIR_SUBTRACT, PAIR_MULTIPLY,
           PAIR_NEGATE, PAIR_ABSOLUTE, PAIR_LESS, PAIR_AT_MOST, PAIR_GREATER, PAIR_AT_LEAST };

    typedef struct { int32_t code, column; double value; } PairStep;
    typedef struct { const double* tile; double value; } PairValue;  /* one number, if no tile */

    /* The same machine code for each set of instructions would fuse products and sums: AVX2 alone
       has no such instruction. */
    #if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
    #define PAIR_CLONES __attribute__((target_clones("avx2", "default")))
    #else
    #define PAIR_CLONES
    #endif

    #define PAIR_EACH(EXPRESSION)                                                                  \\
        do {                                                                                       \\
            _Pragma("GCC ivdep")                                                                   \\
            for (int64_t k = 0; k < n; k++) { EXPRESSION; }                                        \\
        } while (0)
    #define PAIR_ARITHMETIC(OPERATOR)                                                              \\
        do {                                                                                       \\
            if (a.tile && b.tile) PAIR_EACH(out[k] = a.tile[k] OPERATOR b.tile[k]);                \\
            else if (a.tile) PAIR_EACH(out[k] = a.tile[k] OPERATOR b.value);                       \\
            else if (b.tile) PAIR_EACH(out[k] = a.value OPERATOR b.tile[k]);                       \\
            else return (PairValue){0, a.value OPERATOR b.value};                                  \\
            return (PairValue){out, 0};                                                            \\
        } while (0)
    /* Nothing that is compared with NaN is ruled out. */
    #define PAIR_RULE_OUT(OPERATOR)                                                                \\
        do {                                                                                       \\
            if (a.tile && b.tile) PAIR_EACH(open[k] &= -(int64_t) !(a.tile[k] OPERATOR b.tile[k]));\\
            else if (a.tile) PAIR_EACH(open[k] &= -(int64_t) !(a.tile[k] OPERATOR b.value));       \\
            else if (b.tile) PAIR_EACH(open[k] &= -(int64_t) !(a.value OPERATOR b.tile[k]));       \\
            else if (a.value OPERATOR b.value) PAIR_EACH(open[k] = 0);                             \\
        } while (0)

    PAIR_CLONES static PairValue pair_apply(
        int32_t code, PairValue a, PairValue b, double* out, int64_t n)
    {
        switch (code) {
            case PAIR_ADD: PAIR_ARITHMETIC(+);
            case PAIR_SUBTRACT: PAIR_ARITHMETIC(-);
            case PAIR_MULTIPLY: PAIR_ARITHMETIC(*);
            case PAIR_NEGATE:
                if (!a.tile) return (PairValue){0, -a.value};
                PAIR_EACH(out[k] = -a.tile[k]);
                return (PairValue){out, 0};
            default:
                if (!a.tile) return (PairValue){0, fabs(a.value)};
                PAIR_EACH(out[k] = fabs(a.tile[k]));
                return (PairValue){out, 0};
        }
    }

    PAIR_CLONES static void pair_compare(
        int32_t code, PairValue a, PairValue b, int64_t* open, int64_t n)
    {
        switch (code) {
            case PAIR_LESS: PAIR_RULE_OUT(>=); break;
            case PAIR_AT_MOST: PAIR_RULE_OUT(>); break;
            case PAIR_GREATER: PAIR_RULE_OUT(<=); break;
            default: PAIR_RULE_OUT(<);
        }
    }

    /* Of a left row, the places of a tile that are open; returns how many. */
    static int64_t pair_tile(
        const PairStep* steps, int64_t count, const double** left, int64_t i,
        const double** right, int64_t first, int64_t n, int32_t* found)
    {
        double room[PAIR_DEPTH][PAIR_TILE];
        int64_t open[PAIR_TILE], total = 0;
        PairValue stack[PAIR_DEPTH + 1];
        int depth = 0;
        for (int64_t k = 0; k < n; k++) open[k] = -1;
        for (int64_t s = 0; s < count; s++) {
            const PairStep* step = steps + s;
            switch (step->code) {
                case PAIR_CONSTANT: stack[depth++] = (PairValue){0, step->value}; break;
                case PAIR_LEFT: stack[depth++] = (PairValue){0, left[step->column][i]}; break;
                case PAIR_RIGHT: stack[depth++] = (PairValue){right[step->column] + first, 0}; break;
                case PAIR_NEGATE: case PAIR_ABSOLUTE:
                    stack[depth - 1] = pair_apply(
                        step->code, stack[depth - 1], stack[depth - 1], room[depth - 1], n);
                    break;
                case PAIR_ADD: case PAIR_SUBTRACT: case PAIR_MULTIPLY:
                    depth--;
                    stack[depth - 1] = pair_apply(
                        step->code, stack[depth - 1], stack[depth], room[depth - 1], n);
                    break;
                default:
                    depth -= 2;
                    pair_compare(step->code, stack[depth], stack[depth + 1], open, n);
            }
        }
        for (int64_t k = 0; k < n; k++) {
            found[total] = (int32_t) k;
            total -= open[k];
        }
        return total;
    }
    """
    enum:
        PAIR_TILE
        PAIR_DEPTH
        PAIR_CONSTANT
        PAIR_LEFT
        PAIR_RIGHT
        PAIR_ADD
        PAIR_SUBTRACT
        PAIR_MULTIPLY
        PAIR_NEGATE
        PAIR_ABSOLUTE
        PAIR_LESS
        PAIR_AT_MOST
        PAIR_GREATER
        PAIR_AT_LEAST
    ctypedef struct PairStep:
        int32_t code
        int32_t column
        double value
    int64_t pair_tile(
        const PairStep* steps, int64_t count, const double** left, int64_t i,
        const double** right, int64_t first, int64_t n, int32_t* found) nogil

#: Of each step that is no operand, its code.
CODES = {
    "+": PAIR_ADD, "-": PAIR_SUBTRACT, "*": PAIR_MULTIPLY, "negative": PAIR_NEGATE,
    "abs": PAIR_ABSOLUTE, "<": PAIR_LESS, "<=": PAIR_AT_MOST, ">": PAIR_GREATER,
    ">=": PAIR_AT_LEAST,
}
_TAKEN = {"negative": 1, "abs": 1}
_COMPARISONS = ("<", "<=", ">", ">=")


@cython.final
cdef class PairTiles:
    """The pairs of some left rows and right rows that no comparison rules out. Not thread-safe."""

    cdef PairStep* steps
    cdef const double** left
    cdef const double** right
    cdef Py_ssize_t step_count
    cdef Py_ssize_t lefts, rights
    cdef Py_ssize_t at, first  # the next left row, and tile
    cdef list held

    def __cinit__(self, program, left, right, Py_ssize_t lefts, Py_ssize_t rights):
        """``program``: steps in postfix order, each a number (a constant), a pair of ``"left"`` or
        ``"right"`` and the place of a column, or a name in CODES; comparisons leave nothing on the
        stack. ``left``, ``right``: columns of so many rows. InvalidArgumentError for a program that
        is none."""
        cdef Py_ssize_t s, depth = 0
        cdef PairStep* step
        self.lefts, self.rights = lefts, rights
        self.step_count = len(program)
        self.held = []
        self.steps = <PairStep*> calloc(max(1, self.step_count), sizeof(PairStep))
        self.left = <const double**> calloc(max(1, len(left)), sizeof(void*))
        self.right = <const double**> calloc(max(1, len(right)), sizeof(void*))
        if self.steps == NULL or self.left == NULL or self.right == NULL:
            raise MemoryError(f"cannot allocate a program of {self.step_count} steps")
        self._hold(left, lefts, self.left)
        self._hold(right, rights, self.right)
        for s in range(self.step_count):
            step = &self.steps[s]
            given = program[s]
            if isinstance(given, tuple):
                side, step.column = given
                step.code = PAIR_LEFT if side == "left" else PAIR_RIGHT
                if not 0 <= step.column < len(left if side == "left" else right):
                    raise InvalidArgumentError(f"step {s}: there is no column {given!r}")
                depth += 1
            elif isinstance(given, str):
                step.code = CODES[given]
                taken = _TAKEN.get(given, 2)
                if depth < taken:
                    raise InvalidArgumentError(f"step {s}: {given!r} lacks operands")
                depth += (0 if given in _COMPARISONS else 1) - taken
            else:
                step.code, step.value = PAIR_CONSTANT, given
                depth += 1
            if depth > PAIR_DEPTH:
                raise InvalidArgumentError(f"step {s}: more than {PAIR_DEPTH} operands wait")
        if depth:
            raise InvalidArgumentError(f"{depth} operands are left over; end with a comparison")

    def __init__(self, program, left, right, lefts, rights):
        pass

    def __dealloc__(self):
        free(self.steps)
        free(self.left)
        free(self.right)

    cdef int _hold(self, columns, Py_ssize_t rows, const double** places) except -1:
        cdef const double[::1] view
        cdef Py_ssize_t number
        for number, column in enumerate(columns):
            view = column
            if view.shape[0] != rows:
                raise InvalidArgumentError(f"column {number} has {view.shape[0]} rows, not {rows}")
            self.held.append(column)
            if rows:
                places[number] = &view[0]
        return 0

    def next(self, Py_ssize_t most):
        """Return the next pairs as two arrays, at most about ``most``; None at the end. Cost: some
        passes over a tile of 256 right rows for each left row."""
        cdef Py_ssize_t room = most + PAIR_TILE, count = 0, here, k
        cdef int64_t[::1] lefts, rights
        cdef int32_t[PAIR_TILE + 1] found
        if self.first >= self.rights or not self.lefts:
            return None
        left_array, right_array = np.empty(room, np.int64), np.empty(room, np.int64)
        lefts, rights = left_array, right_array
        with nogil:
            while self.first < self.rights and count <= most:
                here = pair_tile(
                    self.steps, self.step_count, self.left, self.at, self.right, self.first,
                    min(<Py_ssize_t> PAIR_TILE, self.rights - self.first), found,
                )
                for k in range(here):
                    lefts[count + k] = self.at
                    rights[count + k] = self.first + found[k]
                count += here
                self.at += 1
                if self.at == self.lefts:
                    self.at = 0
                    self.first += PAIR_TILE
        return left_array[:count], right_array[:count]
