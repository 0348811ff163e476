"""Counts and sums by group, kept in the driver as each micro-batch of a query changes them.

Spark has no update mode above joins of streams. Its best way is that ``foreachBatch`` aggregates
each micro-batch of the joins, and the driver adds what that gives to what it has. Update mode gives
whole groups, so there the driver only replaces what it has.
"""

from collections.abc import Callable, Sequence
from typing import Any


class KeptGroups:
    """Groups as of the last micro-batch."""

    def __init__(self, keys: int, aggregate: Callable[[Any], Any] | None = None) -> None:
        """Prepare for a query.

        Args:
            keys: How many of the first columns make a group; the others are counts and sums.
            aggregate: Aggregates the rows of a micro-batch; None: the query gives whole groups.
        """
        self._keys = keys
        self._aggregate = aggregate
        self.found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.changed: list[int] = []
        """How many groups each micro-batch changed."""

    @property
    def output_mode(self) -> str:
        return "append" if self._aggregate else "update"

    def keep(self, result: Any, _number: int) -> None:
        """Bring the groups up to date; for ``foreachBatch``."""
        changed = (self._aggregate(result) if self._aggregate else result).collect()
        self.changed.append(len(changed))
        for row in changed:
            group, values = tuple(row[: self._keys]), tuple(row[self._keys :])
            before = self.found.get(group)
            if self._aggregate and before is not None:
                values = tuple(map(_added, before, values))
            self.found[group] = values

    def check(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """AssertionError where another answer differs."""
        wanted = {tuple(row[: self._keys]): tuple(row[self._keys :]) for row in rows}
        differing = [
            (group, self.found.get(group), wanted.get(group))
            for group in {*self.found, *wanted}
            if self.found.get(group) != wanted.get(group)
        ]
        assert not differing, f"{len(differing)} of {len(wanted)} groups differ: {differing[:3]}"


def _added(value: Any, other: Any) -> Any:
    """Their sum, as SQL's sum has it: nulls are passed over."""
    return value if other is None else other if value is None else value + other
