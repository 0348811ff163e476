"""Two-phase scaling: how many units a group should have, from what its units store.

- The *load* of a group is the part of its units' capacity that is in use.
- Above one threshold the group wants to grow, below another to shrink. It does so once it has
  wanted the same several times in a row.
- It then gets as many units as bring the load to a target between the thresholds.

Source: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015), section 5. The
paper does not say how the number is rounded: here up where the group grows, and towards what it has
where it shrinks. It does not say either that counting starts again after a change.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lsmstate.errors import InvalidArgumentError

#: Less than this is an error of rounding, and no part of a unit.
_NOTHING = 1e-9


@dataclass(frozen=True)
class Group:
    """How many units a group has, and what it has wanted of late."""

    units: int
    wants: int = 0
    """1: to grow; -1: to shrink; 0: neither."""
    times: int = 0
    """How often in a row."""


@dataclass(frozen=True)
class TwoPhaseScaling:
    """The rule, with the paper's thresholds."""

    capacity_bytes: float
    """What one unit can store."""
    high: float = 0.8
    low: float = 0.3
    target: float = 0.6
    confirmations: int = 3

    def __post_init__(self) -> None:
        """InvalidArgumentError unless a group of the target load wants nothing."""
        if not (self.capacity_bytes > 0 and self.confirmations >= 1):
            raise InvalidArgumentError(
                f"capacity_bytes={self.capacity_bytes!r}, confirmations={self.confirmations!r}: "
                "give numbers above 0"
            )
        if not 0 <= self.low < self.target < self.high:
            raise InvalidArgumentError(
                f"low={self.low!r}, target={self.target!r}, high={self.high!r}: the target must "
                "lie between the thresholds; give low < target < high"
            )

    def load(self, units: int, stored_bytes: Iterable[float]) -> float:
        """The part of the capacity of so many units that is in use."""
        return sum(stored_bytes) / (units * self.capacity_bytes)

    def next(self, group: Group, stored_bytes: Iterable[float], most_units: int) -> Group:
        """Decide for one period. Pure.

        Args:
            group: The group before.
            stored_bytes: What each of its units stores, also those that only wait for their rows to
                expire.
            most_units: How many units there are for it.

        Returns:
            The group after, with other units if that was confirmed.
        """
        load = self.load(group.units, stored_bytes)
        wants = 1 if load > self.high else -1 if load < self.low else 0
        times = group.times + 1 if wants == group.wants else 1
        if not wants:
            return Group(group.units)
        if times < self.confirmations:
            return Group(group.units, wants, times)
        needed = load * group.units / self.target - group.units
        units = max(1, group.units + math.ceil(needed - _NOTHING))
        while wants < 0 and load * group.units / units >= self.high:
            units += 1  # fewer would want to grow again
        return Group(min(units, max(most_units, group.units)))
