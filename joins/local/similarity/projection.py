"""Vectors in fewer components, by which most pairs are ruled out.

With an orthonormal basis of a part of the space, let q1 be the part of q in it, and q2 the rest:

    q x  =  q1 x1 + q2 x2  <=  q1 x1 + |q2| |x2|

So a vector becomes its components in the basis and, as one more, the length of its rest. Products
of these are no less than those of whole vectors, and lengths stay. A bound that a product must
reach holds for the shorter vectors too, so no close pair is lost.

- The basis spans the directions in which a sample of the queries is longest. Vectors that have such
  directions, as embeddings do, have a short rest, and few pairs are left for nothing.
- How many components there are follows from pairs of a sample. Any basis is right.

Source: Cauchy and Schwarz; the basis by the eigenvectors of the second moments, as in principal
component analysis. Rounding: Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lsmstate.cython_ext.distances import exact

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[Any]

#: Unit of rounding in float32, with room.
_UNIT: Final = 1.1 * 2.0**-24
#: Components that are tried; one more holds the length of the rest.
_TRIED: Final = (31, 47, 63, 95, 127)
#: What a pair costs beside its components, in components.
_COST_OF_NONE: Final = 80.0
#: What a pair costs that is left, in pairs of whole vectors that are compared.
_COST_LEFT: Final = 50.0
#: It must be so much cheaper.
_WORTH: Final = 0.7
#: Vectors of each side in a sample.
SAMPLED: Final = 192


class Projection:
    """Made by ``chosen``."""

    def __init__(self, basis: npt.NDArray[np.float64]) -> None:
        self._basis = np.ascontiguousarray(basis, np.float32)
        width, count = basis.shape
        #: How far components are off at most, all together, in parts of the vector's length.
        self.loss = float(np.sqrt(count)) * (width + 8) * _UNIT

    def __call__(self, vectors: Matrix) -> Floats:
        """The vectors in the basis, and the length of the rest, which is no less than it is. Their
        products are at least those of ``vectors`` less 2.1 ``loss`` times both lengths; their
        lengths are those of ``vectors``, or more by a part of 1.1 ``loss``."""
        count = self._basis.shape[1]
        squares = exact.squared_norms(vectors)
        inside = np.asarray(vectors, np.float32) @ self._basis
        rest = np.maximum(squares - exact.squared_norms(inside), 0) + 2.1 * self.loss * squares
        found = np.empty((len(vectors), count + 1), np.float32)
        found[:, :count] = inside
        found[:, count] = np.nextafter(np.sqrt(rest).astype(np.float32), np.float32(np.inf))
        return found


class Choice(NamedTuple):
    """A projection, and which part of the pairs is left."""

    projection: Projection
    left: float

    @classmethod
    def of(
        cls, queries: Matrix, rows: Matrix, is_left: Callable[[Matrix, Matrix, float], Any]
    ) -> Self | None:
        """The one that leaves the least work, judged by pairs of queries and rows.

        Args:
            queries: From which the basis is made.
            rows: Some of those that they are compared with.
            is_left: Of the vectors of some queries and rows, and a loss, which pairs may be close.

        Returns:
            None, where whole vectors are about as good.

        Cost:
            The eigenvectors of a matrix: for 384 components a tenth of a second.
        """
        width = queries.shape[1]
        counts = [count for count in _TRIED if 2 * (count + 1) <= width]
        if not counts:
            return None
        values = np.asarray(queries, np.float64)
        _, directions = np.linalg.eigh(values.T @ values)
        some, others = _some(queries), _some(rows)
        found: list[tuple[float, int, Self]] = []
        for count in counts:
            basis = directions[:, -count:]
            # Turned, so that no component is much greater than others: then bytes lose least.
            turn, _ = np.linalg.qr(np.random.default_rng(count).standard_normal((count, count)))
            projection = Projection(basis @ turn)
            left = is_left(projection(some), projection(others), projection.loss)
            part = float(np.mean(left))
            cost = (count + _COST_OF_NONE) / (width + _COST_OF_NONE) + _COST_LEFT * part
            found.append((cost, count, cls(projection, part)))
        cost, _, best = min(found, key=lambda each: each[:2])
        return best if cost < _WORTH else None


def _some(vectors: Matrix) -> Matrix:
    """So many at most, evenly by their places."""
    return np.ascontiguousarray(vectors[:: max(1, -(-len(vectors) // SAMPLED))])
