"""Join types over one common key: what a tree of joins makes of the streams present at a key.

The rows a stream has at one key are alike to every comparison of keys, and rows of different keys
never meet. So the result at a key is a union of cross products, each of the rows of some streams
with nulls for the columns of the others, and which products these are follows from which streams
have rows there: ``products(tree, present)``, a pure function. A row with a null in its key is
like one at a key of its own.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final, Literal

from lsmstate.joins.conditions.columns import Column, quoted
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.literals import duration_text
from lsmstate.joins.conditions.pair_condition import PairCondition

Kind = Literal["inner", "left", "right", "full", "semi", "anti"]

#: Of each join type what SQL calls it.
SQL_NAMES: Final[dict[Kind, str]] = {
    "inner": "JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}

#: The streams whose rows are combined; semi- and anti-joined ones are in none.
Product = frozenset[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """``COALESCE(left...) = COALESCE(right...)`` of columns that are all the same part of the key:
    true where both sides have a row of one of the streams named."""

    left: tuple[Column, ...]
    right: tuple[Column, ...]

    def matches(self, left: Product, right: Product) -> bool:
        """Whether it is true of a row of either product at one key."""
        return any(c.stream in left for c in self.left) and any(
            c.stream in right for c in self.right
        )

    def __str__(self) -> str:
        return f"{_coalesced(self.left)} = {_coalesced(self.right)}"


@dataclass(frozen=True, slots=True)
class Join:
    """Two trees joined where every comparison is true and every bound is kept."""

    kind: Kind
    left: "Tree"
    right: "Tree"
    on: tuple[Comparison, ...]
    bounds: tuple[Bound, ...] = ()
    """Each between a column of the left and one of the right side."""
    conditions: tuple[PairCondition, ...] = ()
    """Whatever else has to hold for two rows to match."""

    def __str__(self) -> str:
        right = f"({self.right})" if isinstance(self.right, Join) else quoted(self.right)
        left = str(self.left) if isinstance(self.left, Join) else quoted(self.left)
        conditions = [*map(str, self.on), *map(bound_text, self.bounds), *map(str, self.conditions)]
        return f"{left} {SQL_NAMES[self.kind]} {right} ON {' AND '.join(conditions) or 'TRUE'}"


#: A stream's name, or a join.
Tree = str | Join


def products(tree: Tree, present: Set[str]) -> tuple[Product, ...]:
    """Which cross products make up the result at a key where the streams ``present`` have rows.
    Each product occurs once. Cost: 2 to the number of full joins at worst."""
    if isinstance(tree, str):
        return (frozenset({tree}),) if tree in present else ()
    left, right = products(tree.left, present), products(tree.right, present)
    pairs = [(a, b) for a in left for b in right if all(on.matches(a, b) for on in tree.on)]
    matched_left = {a for a, _ in pairs}
    matched_right = {b for _, b in pairs}
    unmatched_left = tuple(a for a in left if a not in matched_left)
    if tree.kind == "semi":
        return tuple(a for a in left if a in matched_left)
    if tree.kind == "anti":
        return unmatched_left
    found = tuple(a | b for a, b in pairs)
    if tree.kind in ("left", "full"):
        found += unmatched_left
    if tree.kind in ("right", "full"):
        found += tuple(b for b in right if b not in matched_right)
    return found


def streams_of(tree: Tree) -> list[str]:
    """All streams, from left to right."""
    if isinstance(tree, str):
        return [tree]
    return streams_of(tree.left) + streams_of(tree.right)


def shown_streams(tree: Tree) -> list[str]:
    """The streams whose columns a result has: all but those of semi and anti joins' right sides."""
    if isinstance(tree, str):
        return [tree]
    if tree.kind in ("semi", "anti"):
        return shown_streams(tree.left)
    return shown_streams(tree.left) + shown_streams(tree.right)


def nullable_streams(tree: Tree) -> set[str]:
    """The shown streams that some result may have no row of."""
    if isinstance(tree, str):
        return set()
    left, right = nullable_streams(tree.left), nullable_streams(tree.right)
    if tree.kind in ("semi", "anti"):
        return left
    if tree.kind in ("left", "full"):
        right = set(shown_streams(tree.right))
    if tree.kind in ("right", "full"):
        left = set(shown_streams(tree.left))
    return left | right


def required_streams(tree: Tree) -> set[str]:
    """Streams without whose rows a key has no result, whatever the others have there."""
    if isinstance(tree, str):
        return {tree}
    left, right = required_streams(tree.left), required_streams(tree.right)
    if tree.kind in ("inner", "semi"):
        # A stream that an outer join below may leave out counts where it is compared by itself.
        sides = [side for on in tree.on for side in (on.left, on.right)]
        return left | right | {side[0].stream for side in sides if len(side) == 1}
    if tree.kind == "full":
        return left & right
    return right if tree.kind == "right" else left


def takes_back(tree: Tree) -> bool:
    """Whether a row that arrives may take back a result that was there before."""
    return any(join.kind not in ("inner", "semi") for join in joins_of(tree))


def joins_of(tree: Tree) -> Iterator[Join]:
    """All joins, inner ones before those that take their results."""
    if isinstance(tree, Join):
        yield from joins_of(tree.left)
        yield from joins_of(tree.right)
        yield tree


def bounds_of(tree: Tree) -> tuple[Bound, ...]:
    """The time intervals of all joins."""
    return tuple(bound for join in joins_of(tree) for bound in join.bounds)


def conditions_of(tree: Tree) -> tuple[PairCondition, ...]:
    """The conditions of all joins that are neither equalities nor time intervals."""
    return tuple(condition for join in joins_of(tree) for condition in join.conditions)


def _coalesced(columns: tuple[Column, ...]) -> str:
    listed = ", ".join(map(_column_text, columns))
    return listed if len(columns) == 1 else f"COALESCE({listed})"


def bound_text(bound: Bound) -> str:
    """The bound as SQL says it."""
    later, earlier = _column_text(bound.later), _column_text(bound.earlier)
    if bound.slide_us:
        slide = duration_text(bound.slide_us, has_days=False)
        earlier = f"date_bin(INTERVAL {slide}, {earlier})"
    amount = duration_text(abs(bound.most_us), has_days=bound.has_days)
    offset = f" {'+' if bound.most_us > 0 else '-'} INTERVAL {amount}" if bound.most_us else ""
    return f"{later} {'<' if bound.is_strict else '<='} {earlier}{offset}"


def _column_text(column: Column) -> str:
    return str(column)
