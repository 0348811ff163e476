"""A table of ranges: the layout by which rows are stored now, and what units hold by earlier ones.

No row moves when the layout changes. So a row probes every unit in which an earlier layout may have
stored a match. Once a layout is *closed*, its units are known by the smallest and the greatest
position that they store, and by how far their rows reach. What is not known yet is taken as the
layout has it, which is more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np

from lsmstate.joins.routing.ranges.layout import Layout, Reached, number
from lsmstate.joins.routing.ranges.positions import Bounded

#: Closed layouts; the two oldest become one where there are more.
MOST_CLOSED: Final = 16


class Held(NamedTuple):
    """What one unit stores of one stream, by one layout or by several."""

    lowest: float = np.inf
    highest: float = -np.inf
    """Positions; the lowest is above the highest where there is no row."""
    below: float = 0.0
    above: float = 0.0
    """How far its rows reach at most."""

    def and_also(self, other: "Held") -> "Held":
        """Both."""
        return Held(
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            max(self.below, other.below),
            max(self.above, other.above),
        )

    @classmethod
    def of(cls, rows: Bounded) -> Self:
        """What these rows are."""
        if not len(rows.value):
            return cls()
        return cls(
            float(rows.value.min()),
            float(rows.value.max()),
            float(rows.below().max()),
            float(rows.above().max()),
        )


NOTHING: Final = Held()
ANYTHING: Final = Held(-np.inf, np.inf, np.inf, np.inf)

#: By stream, what each unit stores; None: it is not known yet.
HeldByUnits = Mapping[str, tuple[Held | None, ...]]


@dataclass(frozen=True)
class Closed:
    """An earlier layout: rows that were stored by it are there, and none comes."""

    micro_batch: int
    """The first one that it was for."""
    layout: Layout
    held: HeldByUnits

    def reached(self, stream: str, rows: Bounded) -> Reached:
        """For each row and unit, whether the unit may store a row of ``stream`` that matches."""
        units = self.held[stream]
        known = np.array([unit or ANYTHING for unit in units], np.float64)
        found = self.layout.reached(stream, rows) if self._is_near(rows, known) else None
        if found is None:
            return np.zeros((len(rows.value), len(units)), np.bool_)
        for place, unit in enumerate(units):
            if unit is not None and found[:, place].any():
                low, high = rows.toward(unit.below, unit.above)
                found[:, place] &= (low <= unit.highest) & (high >= unit.lowest)
        return found

    def _is_near(self, rows: Bounded, known: Any) -> bool:
        """Whether any row may match anything: most of the time none does."""
        low, high = rows.toward(float(known[:, 2].max()), float(known[:, 3].max()))
        return bool(((low <= known[:, 1].max()) & (high >= known[:, 0].min())).any())

    def with_held(self, by_bucket: Mapping[int, Mapping[str, Held]]) -> "Closed":
        """With what buckets say of units that are not known yet."""
        return Closed(self.micro_batch, self.layout, known_units(self.held, by_bucket))

    def and_also(self, later: "Closed") -> "Closed":
        """Both as one, in which a unit may store whatever either stores."""
        held = {
            stream: tuple(
                (mine or ANYTHING).and_also(other or ANYTHING)
                for mine, other in zip(units, later.held[stream], strict=True)
            )
            for stream, units in self.held.items()
        }
        return Closed(later.micro_batch, Layout(later.layout.units), held)


@dataclass(frozen=True)
class RangeTable:
    """What rows are routed by in some micro-batches."""

    layout: Layout
    micro_batch: int = 0
    """The first one that the layout is for."""
    closed: tuple[Closed, ...] = field(default=())
    """Layouts of before, the oldest first."""

    @property
    def called(self) -> tuple[int, ...]:
        """None: rows say which buckets they need."""
        return ()

    def reached(self, stream: str, rows: Bounded) -> Reached:
        """For each row and unit, whether the unit may store a row of ``stream`` that matches."""
        found = self.layout.reached(stream, rows)
        for closed in self.closed:
            found |= closed.reached(stream, rows)
        return found

    def closing(self, layout: Layout, micro_batch: int, held: HeldByUnits) -> "RangeTable":
        """The table with another layout from a micro-batch on."""
        closed = [*self.closed, Closed(self.micro_batch, self.layout, held)]
        while len(closed) > MOST_CLOSED:
            closed[:2] = [closed[0].and_also(closed[1])]
        return RangeTable(layout, micro_batch, tuple(closed))

    def explain(self) -> str:
        """A line for each unit's range, and one for the layouts of before."""
        if not self.layout.edges:
            return "rows are dealt to all units"
        shown = ", ".join(f"{edge:g}" for edge in self.layout.edges)
        wide = self.layout.wide
        lines = [f"ranges of {self.layout.striped} units: {shown}"]
        if wide is not None:
            lines.append(f"rows that reach far are stored in unit {wide}")
        if self.closed:
            lines.append(f"earlier layouts that still have rows: {len(self.closed)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        return {
            "layout": self.layout.to_json(),
            "micro_batch": self.micro_batch,
            "closed": [
                {
                    "layout": each.layout.to_json(),
                    "micro_batch": each.micro_batch,
                    "held": {stream: list(map(_packed, u)) for stream, u in each.held.items()},
                }
                for each in self.closed
            ],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        closed = [
            Closed(
                each["micro_batch"],
                Layout.from_json(each["layout"]),
                {stream: tuple(map(_unpacked, units)) for stream, units in each["held"].items()},
            )
            for each in found["closed"]
        ]
        return cls(Layout.from_json(found["layout"]), found["micro_batch"], tuple(closed))


def known_units(held: HeldByUnits, by_bucket: Mapping[int, Mapping[str, Held]]) -> HeldByUnits:
    """What is known of the units with what their buckets say: one that says nothing of a stream has
    nothing of it."""
    return {
        stream: tuple(
            by_bucket[place].get(stream, NOTHING) if unit is None and place in by_bucket else unit
            for place, unit in enumerate(units)
        )
        for stream, units in held.items()
    }


def _packed(held: Held | None) -> list[float | str] | None:
    return None if held is None else list(map(number, held))


def _unpacked(found: Iterable[float | str] | None) -> Held | None:
    return None if found is None else Held(*map(float, found))
