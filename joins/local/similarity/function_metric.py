"""Metrics of the user's: a function of two matrices of equal shape that gives each row's distance.

The function promises a metric: distances are not negative, 0 of equal vectors, the same in both
directions, and obey the triangle inequality. Pivots and S3J leave pairs out by it, so the promise
is checked on samples of what comes. ``algorithm="tiles"`` compares all pairs and needs none.
"""

import pkgutil
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.similarity.vectors import Matrix

Places = npt.NDArray[np.int32]
Distances = npt.NDArray[np.float64]

#: Numbers of each matrix that the function is given at once.
_STEP_NUMBERS: Final = 1 << 18
#: What the function may lose, as a part of the largest distance that was seen.
_ROOM: Final = 1e-6
#: Vectors of a batch among which the promise is checked, beside as many that came before.
_SAMPLED: Final = 12
_SHOWN: Final = 4


class FunctionMetric:
    """The function of one name."""

    def __init__(self, name: str) -> None:
        """Import it. InvalidArgumentError if that fails."""
        self.name = name
        try:
            self._function: Callable[[Matrix, Matrix], Any] = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InvalidArgumentError(
                f"metric={name!r} cannot be imported ({error}); give a function at the top of a "
                "module that every process has"
            ) from error

    def distances(self, a: Matrix, a_places: Places, b: Matrix, b_places: Places) -> Distances:
        """What the function says of pairs of places, asked in steps of bounded size."""
        found = np.empty(len(a_places))
        step = max(1, _STEP_NUMBERS // max(1, a.shape[1]))
        for first in range(0, len(a_places), step):
            part = slice(first, first + step)
            some = np.asarray(self._function(a[a_places[part]], b[b_places[part]]), np.float64)
            if some.shape != (len(a_places[part]),):
                raise InvalidArgumentError(
                    f"metric={self.name!r} gave an array of the shape {some.shape} for "
                    f"{len(a_places[part])} pairs; return one distance for each"
                )
            found[part] = some
        return found

    def between(self, a: Matrix, b: Matrix) -> Distances:
        """The distance of each row of one matrix from each of another."""
        rows = np.repeat(np.arange(len(a), dtype=np.int32), len(b))
        others = np.tile(np.arange(len(b), dtype=np.int32), len(a))
        return self.distances(a, rows, b, others).reshape(len(a), len(b))


class FunctionSpace:
    """The space of a function, in which pivots and worksets lie."""

    def __init__(self, function: FunctionMetric, threshold: float) -> None:
        self._function = function
        self.reach = threshold * (1 + _ROOM)
        self.sure = threshold * (1 - _ROOM)
        self._farthest = 0.0
        self._sample: Matrix | None = None

    def points(self, values: Matrix) -> Matrix:
        """The vectors as they are."""
        return values.astype(np.float64)

    def distances(self, points: Matrix, pivots: Matrix) -> Distances:
        """Of each point from each pivot."""
        found = self._function.between(points, pivots)
        self._farthest = max(self._farthest, float(found.max(initial=0.0)))
        return found

    def slack(self, longest: float, width: int) -> float:
        """How far ``distances`` may be off: a part of the largest one that was seen."""
        return _ROOM * (self._farthest + 4 * self.reach)

    def check(self, values: Matrix) -> None:
        """Check the promise among some vectors that come and some that came.

        Raises:
            InvalidArgumentError: It is broken; the message has the vectors and the distances.
        """
        if not len(values):
            return
        some = values[np.linspace(0, len(values) - 1, min(_SAMPLED, len(values))).astype(np.int64)]
        every = some if self._sample is None else np.concatenate([self._sample, some])
        self._sample = every[-_SAMPLED:]
        apart = self.distances(every, every)
        room = _ROOM * float(apart[np.isfinite(apart)].max(initial=0.0))
        self._refuse(~(apart >= 0), "gives no distance", every, apart)
        is_self = np.eye(len(every), dtype=np.bool_)
        self._refuse(is_self & (apart > room), "is not 0 of equal vectors", every, apart)
        self._refuse(apart > apart.T + room, "is not the same in both directions", every, apart)
        for middle in range(len(every)):
            around = apart[:, middle, None] + apart[middle]
            broken = apart > around + room
            if broken.any():
                x, z = (int(at) for at in np.argwhere(broken)[0])
                raise InvalidArgumentError(
                    f"metric={self._function.name!r} breaks the triangle inequality: the distance "
                    f"of {_shown(every[x])} and {_shown(every[z])} is {apart[x, z]:g}, and by way "
                    f"of {_shown(every[middle])} it is {apart[x, middle]:g} + "
                    f"{apart[middle, z]:g}; {_REMEDY}"
                )

    def _refuse(
        self, is_broken: npt.NDArray[np.bool_], fault: str, every: Matrix, apart: Distances
    ) -> None:
        if is_broken.any():
            x, y = (int(at) for at in np.argwhere(is_broken)[0])
            raise InvalidArgumentError(
                f"metric={self._function.name!r} {fault}: of {_shown(every[x])} and "
                f"{_shown(every[y])} it gives {apart[x, y]:g}, and the other way round "
                f"{apart[y, x]:g}; {_REMEDY}"
            )


_REMEDY: Final = "give a metric, or compare all pairs by algorithm='tiles'"


def _shown(vector: Matrix) -> str:
    numbers = [f"{number:g}" for number in vector[:_SHOWN]]
    return f"[{', '.join([*numbers, *['...'] * (len(vector) > _SHOWN)])}]"
