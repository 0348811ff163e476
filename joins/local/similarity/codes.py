"""Codes: points in few whole numbers, by which most pairs are ruled out without the points.

With a centre and an orthonormal basis, let q1 be the part of a point q in the basis, measured from
the centre, and q2 the rest:

    q x  =  q1 x1 + q2 x2  <=  q1 x1 + |q2| |x2|

A pair at most t apart has q x >= (|q|^2 + |x|^2 - t^2) / 2. So what says that q1 x1 + |q2| |x2| is
less rules a pair out. This is looked at twice: by the *head*, which has the leading components and
the length of what is left, and by the *tail* as well, which has more of them.

- Components become whole numbers. If x = r v + f and q = s u + e, then

    |q x - s r (u v)|  <=  |e| (|x| + |f|) + |q| |f|

  The lengths of the errors are known, not estimated. So no close pair is lost.
- The basis spans the directions in which a sample varies most. Any basis is right, and any scale:
  what is too great for a whole number has a great error.
- How many components there are follows from what they cost, and what they leave of a sample.

Source: Cauchy and Schwarz; the basis by the eigenvectors of the covariance, as in principal
component analysis.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.distances import code_tiles
from lsmstate.cython_ext.distances.exact import squared_norms

Matrix = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

#: What rounding in float64 loses at most, in parts of squared lengths, and of lengths, with room.
_LOSS: Final = 1e-9
_LONGER: Final = 1 + 1e-6
#: Lengths of points that have codes.
_LONGEST: Final = 1e15
_SHORTEST: Final = 1e-15
#: Numbers of heads and tails that are tried; those of tails after the head.
_HEADS: Final = (16, 32, 48, 64, 96, 128, 192)
_TAILS: Final = (0, 16, 32, 64, 96, 128, 160, 224, 288)
_LANES: Final = 16
#: Most components for which all directions of a sample are found.
_MOST_DIRECTIONS: Final = 512
#: Points of each side of a sample, and queries that a stored row is taken to meet.
_SAMPLED: Final = 256
_QUERIES: Final = 2000
#: Nanoseconds: of a number of a pair, of a pair beside its numbers, of a pair that the heads leave,
#: of each of its numbers, of a byte that is read, and of a pair whose points are read, and of each
#: of their components.
_OF_NUMBER: Final = 0.013
_OF_PAIR: Final = 0.15
_OF_LEFT: Final = 12.0
_OF_LEFT_NUMBER: Final = 0.08
_OF_BYTE: Final = 0.2
_OF_CANDIDATE: Final = 800.0
_OF_COMPONENT: Final = 7.0
#: Another basis must be so much cheaper than the one there is.
_WORTH: Final = 0.7
#: The part of a sample whose errors are usual.
_USUAL: Final = 0.98


class Chunks(NamedTuple):
    """Codes of rows as they are stored: chunk i is of rows ``starts[i]`` to ``starts[i + 1]``."""

    starts: list[int]
    codes: list[bytes]


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions from a centre, and scales of whole numbers. Made by ``Basis.of``."""

    centre: Lengths
    directions: Matrix
    """Orthonormal columns."""
    head: int
    """Numbers of the head; a multiple of 16."""
    tail: int
    head_scale: float
    tail_scale: float
    row_error: float
    """What heads of rows lose usually."""

    @cached_property
    def _inside(self) -> int:
        """Components in the head."""
        return min(self.head - 1, int(self.directions.shape[1]))

    def to_numbers(self) -> list[Lengths]:
        """All of it in lists: the settings, the centre, the directions."""
        own = [self.head, self.tail, self.head_scale, self.tail_scale, self.row_error]
        return [np.array(own, np.float64), self.centre, *self.directions.T]

    @classmethod
    def from_numbers(cls, found: list[Lengths]) -> Self:
        """The inverse of ``to_numbers``."""
        (head, tail, *others), centre, *directions = found
        return cls(centre, np.stack(directions, 1), int(head), int(tail), *map(float, others))

    @classmethod
    def of(cls, points: Matrix, reach: float, before: "Basis | None" = None) -> "Basis | None":
        """The basis that is cheapest for a sample of points.

        Args:
            points: The sample.
            reach: How far apart a pair is at most.
            before: The one that is in use.

        Returns:
            None, where the one in use is about as good, or the points have no codes.

        Cost:
            The eigenvectors of a matrix: for 384 components a tenth of a second.
        """
        centre = points.mean(axis=0)
        around = points - centre
        most = float(np.abs(around).max(initial=0.0))
        if not _SHORTEST < most < _LONGEST:
            return None
        directions = _directions(around)
        shuffled = np.random.default_rng(0).permutation(len(points))
        half = min(_SAMPLED, len(points) // 2)
        queries, rows = around[shuffled[:half]], around[shuffled[half : 2 * half]]
        found = min(_costs(queries, rows, directions, reach), key=lambda each: each[0])
        cost, head, tail = found
        if before is not None:
            known = points[shuffled[:half]] - before.centre, points[shuffled[half:]] - before.centre
            plan = before.head, before.tail
            now = _cost(_Sample(*known, before.directions, reach), *plan)
            if cost > _WORTH * now:
                return None
        return cls._turned(centre, around, directions, head, tail)

    @classmethod
    def _turned(
        cls, centre: Lengths, around: Matrix, directions: Matrix, head: int, tail: int
    ) -> "Basis":
        """Turned, so that no component is much greater than others: then numbers lose least."""
        inside = min(head - 1, directions.shape[1])
        count = min(inside + max(tail - 1, 0), directions.shape[1])
        first = directions[:, :inside] @ _turn(inside)
        rest = directions[:, inside:count]
        if rest.shape[1]:
            rest = rest @ _turn(rest.shape[1])
        turned, _ = np.linalg.qr(np.concatenate([first, rest], axis=1))
        made = cls(centre, turned, head, tail, 1.0, 1.0, 0.0)
        values = made._components(around, squared_norms(around))
        scales = []
        for part in (values[:, : inside + 1], values[:, inside + 1 :]):
            most = np.abs(part).max(axis=1, initial=0.0)
            scale = float(np.quantile(most, _USUAL)) / code_tiles.ROW_MOST
            scales.append(scale if scale > _SHORTEST * 1e-3 else 1.0)
        made = cls(centre, turned, head, tail, scales[0], scales[1], 0.0)
        errors = made._rows(around)[2]
        usual = float(np.quantile(errors, _USUAL))
        return cls(centre, turned, head, tail, scales[0], scales[1], usual)

    def _components(self, around: Matrix, squares: Lengths) -> Matrix:
        """Those of the head, the length of the rest, those of the tail, the length of the rest of
        both. Lengths are no less than they are."""
        inside, count = self._inside, self.directions.shape[1]
        found = np.empty((len(around), count + 2))
        both = around @ self.directions
        found[:, :inside], found[:, inside + 1 : -1] = both[:, :inside], both[:, inside:]
        left = squares - (both[:, :inside] ** 2).sum(axis=1)
        found[:, inside] = np.sqrt(np.maximum(left, 0) + 1e-12 * squares)
        left -= (both[:, inside:] ** 2).sum(axis=1)
        found[:, -1] = np.sqrt(np.maximum(left, 0) + 1e-12 * squares)
        return found

    def components(self, points: Matrix) -> tuple[Matrix, Lengths]:
        """What ``chunks`` and ``panels`` are made of: components, and squared lengths."""
        around = points - self.centre
        with np.errstate(over="ignore", invalid="ignore"):
            squares = squared_norms(around)
            return self._components(around, squares), squares

    def _rows(self, around: Matrix) -> tuple[Any, Any, Lengths, Lengths]:
        return self._rounded(self._components(around, squared_norms(around)))

    def _rounded(self, values: Matrix) -> tuple[Any, Any, Lengths, Lengths]:
        """Heads and tails, and the errors of heads and of both."""
        count, inside = len(values), self._inside
        heads = np.zeros((count, self.head), np.int8)
        tails = np.zeros((count, self.tail), np.int8)
        most, width = code_tiles.ROW_MOST, values.shape[1]
        own = code_tiles.rounded(values, 0, inside, self.head_scale, most, heads, 0)
        rest = code_tiles.rounded(values, inside, inside + 1, self.head_scale, most, heads, inside)
        first = np.sqrt(own + rest)
        if not self.tail:
            return heads, tails, first, first
        others = code_tiles.rounded(values, inside + 1, width, self.tail_scale, most, tails, 0)
        return heads, tails, first, np.sqrt(own + others)

    def chunks(self, components: tuple[Matrix, Lengths], numbers: Numbers, first: int) -> Chunks:
        """The codes of rows with these numbers, which ascend by one; ``first``: what is added to
        the starts of chunks."""
        values, squares = components
        is_far = ~(squares <= _LONGEST**2)
        values, squares = np.where(is_far[:, None], 0, values), np.where(is_far, 0, squares)
        heads, tails, *errors = self._rounded(values)
        for error in errors:
            error[is_far] = np.inf
        lengths = np.sqrt(squares) * _LONGER
        terms = np.stack(
            [
                _below(squares * (0.5 - 2 * _LOSS)),
                *(_above(each * _LONGER) for each in (lengths, *errors)),
            ]
        )
        reach = np.where(is_far, 0, terms[1].astype(np.float64) + terms[2])
        sums = heads.sum(axis=1, dtype=np.int32)
        starts, codes = [], []
        for begin in range(0, len(values), code_tiles.MOST_ROWS):
            some = slice(begin, min(len(values), begin + code_tiles.MOST_ROWS))
            longest = _above(reach[some].max(keepdims=True))
            front = np.array([numbers[begin]], np.int64).tobytes()
            front += np.array([some.stop - some.start], np.int32).tobytes() + longest.tobytes()
            parts = [heads[some], tails[some], np.ascontiguousarray(terms[:, some]), sums[some]]
            starts.append(first + begin)
            codes.append(front + b"".join(part.tobytes() for part in parts))
        return Chunks([*starts, first + len(values)], codes)

    def panels(self, components: tuple[Matrix, Lengths], reach: float) -> code_tiles.CodePanels:
        """Queries, ready to be compared with chunks."""
        values, squares = components
        inside, count = self._inside, len(values)
        is_far = ~(squares <= _LONGEST**2)
        values, squares = np.where(is_far[:, None], 0, values), np.where(is_far, 0, squares)
        most = np.abs(values[:, : inside + 1]).max(axis=1, initial=0.0)
        scale = float(np.quantile(most, _USUAL)) / code_tiles.QUERY_MOST if count else 1.0
        scale = scale if scale > 0 else 1.0
        heads = np.zeros((count, self.head), np.int8)
        errors = np.sqrt(
            code_tiles.rounded(values, 0, inside + 1, scale, code_tiles.QUERY_MOST, heads, 0)
        )
        errors *= _LONGER
        usual = float(np.quantile(errors, _USUAL)) if count else 0.0
        lengths = np.sqrt(squares) * _LONGER
        room = _LOSS * (squares + reach**2)
        half = (squares - reach**2) / 2
        unit = 1 / (scale * self.head_scale) if scale * self.head_scale > 1e-250 else np.inf
        terms = np.empty((5, count))
        with np.errstate(over="ignore", invalid="ignore"):
            terms[0] = (half - room - lengths * self.row_error) * unit
            terms[1] = np.maximum(errors - usual, 0) * unit
        wholes, scales, rests = self._wholes(values)
        terms[2], terms[3], terms[4] = scales, rests - half + room, lengths
        terms[0, is_far], terms[3, is_far] = -np.inf, np.inf
        longest = float(lengths.max(initial=0.0))
        return code_tiles.CodePanels(heads, wholes, terms, usual, longest, self.row_error, unit)

    def _wholes(self, values: Matrix) -> tuple[npt.NDArray[np.int16], Lengths, Lengths]:
        """Queries as 16-bit numbers, with the scales of rows' numbers in them; their own scales,
        and what they lose in products at most."""
        count, inside, width = len(values), self._inside, self.head + self.tail
        parts = np.zeros((count, width))
        parts[:, :inside] = values[:, :inside] * self.head_scale
        if self.tail:
            others = values[:, inside + 1 :]
            parts[:, self.head : self.head + others.shape[1]] = others * self.tail_scale
        else:
            parts[:, inside] = values[:, inside] * self.head_scale
        # A sum of products of 32 bits must not overflow.
        most = min(32767, (2**31 - 1) // (code_tiles.ROW_MOST * width + 1))
        scales = np.abs(parts).max(axis=1, initial=0.0) / most
        safe = np.where(scales > 1e-300, scales, 1.0)
        wholes = np.clip(np.rint(parts / safe[:, None]), -most, most).astype(np.int16)
        lost = np.abs(parts - wholes * safe[:, None]).sum(axis=1) * (code_tiles.ROW_MOST + 1)
        return wholes, safe, lost


def _turn(count: int) -> Matrix:
    turn, _ = np.linalg.qr(np.random.default_rng(count).standard_normal((count, count)))
    return np.asarray(turn)


def _directions(around: Matrix) -> Matrix:
    """Those in which points vary most come first."""
    if around.shape[1] <= _MOST_DIRECTIONS:
        return np.asarray(np.linalg.eigh(around.T @ around)[1][:, ::-1])
    some = around[:: -(-len(around) // _MOST_DIRECTIONS)]
    _, vectors = np.linalg.eigh(some @ some.T)
    found, _ = np.linalg.qr(some.T @ vectors[:, ::-1])
    return np.asarray(found)


class _Sample:
    """Pairs, and which part of them components leave."""

    def __init__(self, queries: Matrix, rows: Matrix, directions: Matrix, reach: float) -> None:
        self.width = int(queries.shape[1])
        self.directions = directions
        self.squares = squared_norms(queries), squared_norms(rows)
        self.values = queries @ directions, rows @ directions
        self.bounds = (self.squares[0][:, None] + self.squares[1] - reach**2) / 2
        self.lengths = tuple(np.sqrt(each) for each in self.squares)

    def left(self, count: int, numbers: int, most: int) -> float:
        """With so many components, in whole numbers of which there are so many; those of queries go
        up to ``most``."""
        q, x = (each[:, :count] for each in self.values)
        rests = [
            np.sqrt(np.maximum(own - (each * each).sum(axis=1), 0))
            for own, each in zip(self.squares, (q, x), strict=True)
        ]
        lost = [
            np.sqrt(numbers / 12) * max(np.abs(each).max(initial=0.0), rest.max()) / greatest
            for each, rest, greatest in zip((q, x), rests, (most, code_tiles.ROW_MOST), strict=True)
        ]
        slack = lost[0] * self.lengths[1] + (self.lengths[0] * lost[1])[:, None]
        return float((q @ x.T + np.outer(*rests) + slack >= self.bounds).mean())


def _costs(
    queries: Matrix, rows: Matrix, directions: Matrix, reach: float
) -> Iterator[tuple[float, int, int]]:
    """Costs, heads and tails."""
    sample = _Sample(queries, rows, directions, reach)
    count = directions.shape[1]
    whole = -(-(count + 1) // _LANES) * _LANES
    for head in {min(head, whole) for head in (*_HEADS, whole)}:
        beyond = -(-(count - min(head - 1, count) + 1) // _LANES) * _LANES
        for tail in {min(tail, beyond) for tail in (*_TAILS, beyond)} if head < whole else (0,):
            yield _cost(sample, head, tail), head, tail


def _cost(sample: _Sample, head: int, tail: int) -> float:
    """Nanoseconds of a stored row."""
    inside = min(head - 1, sample.directions.shape[1])
    left = sample.left(inside, head, code_tiles.QUERY_MOST)
    count = min(inside + max(tail - 1, 0), sample.directions.shape[1])
    # The tail's numbers are finer than the head's: what they lose is little beside.
    found = sample.left(count, head, 1 << 14)
    numbers = head + tail
    pair = _OF_NUMBER * head + _OF_PAIR + left * (_OF_LEFT + _OF_LEFT_NUMBER * numbers)
    read: float = found * (_OF_CANDIDATE + _OF_COMPONENT * sample.width)
    return _QUERIES * (pair + read) + _OF_BYTE * (numbers + code_tiles.BESIDE_BYTES)


def _below(values: Lengths) -> npt.NDArray[np.float32]:
    return np.nextafter(values.astype(np.float32), np.float32(-np.inf))


def _above(values: Any) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(np.nextafter(values.astype(np.float32), np.float32(np.inf)))
