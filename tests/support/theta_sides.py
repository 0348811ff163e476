"""Joins of two streams by any condition and of any type, by brute force."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from support.theta_cases import Condition, Row

JOINS = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}
Ids = Counter[tuple[int | None, ...]]


class Oracle:
    """Pairs that match, and the join of the rows that are there."""

    def __init__(
        self, kind: str, condition: Condition, tables: Mapping[str, Sequence[Row]]
    ) -> None:
        """``tables``: the left stream first."""
        (left, lefts), (right, rights) = tables.items()
        self._kind = kind
        self._pairs = {
            (one["id"], other["id"])
            for one, other in product(lefts, rights)
            if condition.judge({left: one, right: other}) is True
        }

    def joined(self, left: Counter[int], right: Counter[int]) -> Ids:
        """``left`` and ``right``: how often rows are there, by their ids."""
        found: Ids = Counter()
        matched: set[tuple[int, int]] = set()
        for (one, m), (other, n) in product(left.items(), right.items()):
            if m and n and (one, other) in self._pairs:
                found[one, other] += m * n
                matched |= {(0, one), (1, other)}
        alone = {one: m for one, m in left.items() if (0, one) not in matched}
        if self._kind == "semi":
            return Counter({(one,): m for one, m in left.items() if m and one not in alone})
        if self._kind == "anti":
            return +Counter({(one,): m for one, m in alone.items()})
        if self._kind in ("left", "full"):
            found.update({(one, None): m for one, m in alone.items()})
        if self._kind in ("right", "full"):
            others = right.items()
            found.update({(None, one): m for one, m in others if (1, one) not in matched})
        return +found
