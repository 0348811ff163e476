"""Which unit stores a row, by its position: stripes between cut points, dealt to the units.

- Between the lowest and the highest edge there is one *stripe* per unit. Their cut points are
  quantiles, so the units have about as many rows.
- Beyond these edges stripes of one width go on, and are dealt to the units in turn. So keys that
  rise from micro-batch to micro-batch do not all fall to the last unit.
- A row that reaches far would make every other row look far for it. Such *wide* rows have a unit of
  their own, which all rows probe. All others reach at most as far as the layout says.
- Before anything is known, rows are dealt by their content, and each probes all units.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from lsmstate.joins.protocols import Numbers
from lsmstate.joins.routing.content import Hashes
from lsmstate.joins.routing.ranges.positions import Bounded, Positions

Reached = npt.NDArray[np.bool_]

#: Stripes on either side of the edges; what lies beyond belongs to the last one.
_MOST_STRIPES: Final = 1 << 40

#: How far the rows of a stream reach below and above their own positions.
Reach = tuple[float, float]
FAR: Final[Reach] = (np.inf, np.inf)


@dataclass(frozen=True)
class Layout:
    """Where rows are stored."""

    units: int
    """How many there are."""
    edges: tuple[float, ...] = ()
    """Of one stripe more than cut points, ascending; none: rows are dealt by their content."""
    step: float = 0.0
    """The width of a stripe beyond the edges; 0: the outer stripes have no end."""
    reach: Mapping[str, Reach] = field(default_factory=dict)
    """By stream, how far rows reach that are not wide; others reach any distance."""

    @property
    def wide(self) -> int | None:
        """The unit of the wide rows; None: there are no wide rows."""
        is_bounded = any(reach != FAR for reach in self.reach.values())
        return self.units - 1 if is_bounded and self.edges else None

    @property
    def striped(self) -> int:
        """Units that stripes are dealt to."""
        return self.units if self.wide is None else self.units - 1

    def reach_of(self, stream: str) -> Reach:
        """How far the rows of a stream reach that are not wide."""
        return self.reach.get(stream, FAR)

    def stored(self, stream: str, rows: Bounded, contents: Hashes | None) -> Numbers:
        """The unit that stores each row. ``contents`` is for a layout without edges."""
        if not self.edges:
            assert contents is not None, "rows are dealt by their content"
            return (contents % np.uint64(self.units)).astype(np.int64)
        found = self._stripes(rows.value) % self.striped
        if self.wide is not None:
            found[self.is_wide(stream, rows)] = self.wide
        return found

    def is_wide(self, stream: str, rows: Bounded) -> Reached:
        """Which rows reach further than the layout says."""
        below, above = self.reach_of(stream)
        found: Reached = (rows.below() > below) | (rows.above() > above)
        return found

    def reached(self, stream: str, rows: Bounded) -> Reached:
        """For each row and unit, whether the unit may store a row of ``stream`` that matches."""
        if not self.edges:
            return np.ones((len(rows.value), self.units), np.bool_)
        low, high = rows.toward(*self.reach_of(stream))
        first, last = self._stripes(low), self._stripes(high)
        count = np.minimum(last - first + 1, self.striped)
        found = np.zeros((len(first), self.units), np.bool_)
        steps = np.arange(self.striped)
        offset = (steps - first[:, None]) % self.striped
        found[:, : self.striped] = (offset < count[:, None]) & (low <= high)[:, None]
        if self.wide is not None and self.reach_of(stream) != FAR:
            found[:, self.wide] = True
        return found

    def to_json(self) -> dict[str, Any]:
        """The layout as JSON has it."""
        return {
            "units": self.units,
            "edges": [number(edge) for edge in self.edges],
            "step": number(self.step),
            "reach": {stream: list(map(number, reach)) for stream, reach in self.reach.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        reach = {stream: (float(b), float(a)) for stream, (b, a) in found["reach"].items()}
        edges = tuple(map(float, found["edges"]))
        return cls(found["units"], edges, float(found["step"]), reach)

    @cached_property
    def _cuts(self) -> Positions:
        return np.array(self.edges[1:-1], np.float64)

    def _stripes(self, at: Positions) -> Numbers:
        """The number of the stripe of each position; it never falls where the position rises."""
        bottom, top = self.edges[0], self.edges[-1]
        found = np.searchsorted(self._cuts, at, side="right").astype(np.int64)
        if self.step <= 0.0:
            return found
        with np.errstate(over="ignore", invalid="ignore"):
            beyond = np.clip((at - top) // self.step, 0, _MOST_STRIPES)
            before = np.clip((bottom - at) // self.step, 0, _MOST_STRIPES)
        inside = len(self.edges) - 1
        found = np.where(at > top, inside + _whole(beyond), found)
        return np.where(at < bottom, -1 - _whole(before), found)


def number(value: float) -> float | str:
    """A number as JSON can have it."""
    return value if np.isfinite(value) else str(value)


def _whole(steps: Positions) -> Numbers:
    """Infinite positions divided by a width give NaN."""
    return np.nan_to_num(steps, nan=float(_MOST_STRIPES)).astype(np.int64)
