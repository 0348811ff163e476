"""What a conjunct says of the rows of one stream, once rows of others are known.

A *restriction* compares a part of a key of the stream, its *target*, with what the other streams
have: as it is written (``b.t >= a.low``), or rearranged (``abs(a.x - b.x) <= 2``). A rearranged one
picks candidates only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, evaluated
from lsmstate.joins.conditions.key_parts import KeyPart, Streams, compared_parts
from lsmstate.joins.conditions.linear import (
    LinearBound,
    WholeBound,
    as_keys,
    bound_of,
    difference,
    key_part,
    linear,
    whole_bound,
)
from lsmstate.joins.conditions.predicate import (
    Between,
    Call,
    Compare,
    Constant,
    Duration,
    Equal,
    Expression,
    conjuncts_of,
    streams_of,
)

Sign = Literal["=", "<", "<=", ">", ">="]

_SIGNS: Final[dict[str, Sign]] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}
_FLIPPED: Final[dict[str, Sign]] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Restriction:
    """``part sign bound``, where the bound is of other streams."""

    conjunct: Expression
    part: KeyPart
    sign: Sign
    bound: KeyPart | LinearBound | WholeBound
    takes_nan: bool = False
    """Whether a stored NaN is a candidate although it is above the bound."""
    whole: WholeBound | None = None
    """The bound without what it is widened by, where whole numbers or times are compared."""

    @property
    def is_exact(self) -> bool:
        """Whether it says all that the conjunct does."""
        return not isinstance(self.bound, LinearBound)

    @property
    def is_lower(self) -> bool:
        """Whether it bounds the part from below."""
        return self.sign in (">", ">=", "=")

    @property
    def is_upper(self) -> bool:
        """Whether it bounds the part from above."""
        return self.sign in ("<", "<=", "=")


def all_conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """The conjuncts of a condition; BETWEEN is two of them."""
    found: list[Expression] = []
    for each in conjuncts_of(expression):
        match each:
            case Between(value, low, high):
                found += [Compare(">=", value, low), Compare("<=", value, high)]
            case _:
                found.append(each)
    return tuple(found)


def restrictions_on(target: str, conjunct: Expression, streams: Streams) -> tuple[Restriction, ...]:
    """What a conjunct says of a stream's rows: one restriction, two for a distance, or none that
    an index could use."""
    match conjunct:
        case Equal(left, right):
            return _compared(target, conjunct, "=", left, right, streams)
        case Compare(">" | ">=" as sign, left, Call("abs", (_,)) as distance):
            flipped = Compare("<" if sign == ">" else "<=", distance, left)
            return _within(target, conjunct, flipped, streams)
        case Compare("<" | "<=", Call("abs", (_,)), _):
            return _within(target, conjunct, conjunct, streams)
        case Compare(sign, left, right) if sign != "<>":
            return _compared(target, conjunct, _SIGNS[sign], left, right, streams)
    return ()


def _within(
    target: str, conjunct: Expression, compared: Compare, streams: Streams
) -> tuple[Restriction, ...]:
    """A distance is at most a length: neither it nor its opposite is more."""
    if target not in _of_two(compared):
        return ()
    sign = _SIGNS[compared.sign]
    direct = _compared(target, conjunct, sign, compared.left, compared.right, streams)
    if direct:  # of one stream each
        return direct
    assert isinstance(compared.left, Call)
    (of,), most = compared.left.arguments, compared.right
    both = (of, most), (Call("negative", (most,)), of)
    found = [_rearranged(target, conjunct, sign, *sides, streams) for sides in both]
    # A NaN is at no distance. Neither end alone says what a distance does.
    is_whole = all(each is not None and each.whole is not None for each in found)
    return tuple(
        replace(each, takes_nan=False, whole=each.whole if is_whole else None)
        for each in found
        if each
    )


def _of_two(expression: Expression) -> set[str]:
    found = streams_of(expression)
    return found if len(found) > 1 else set()


def _compared(
    target: str,
    conjunct: Expression,
    sign: Sign,
    left: Expression,
    right: Expression,
    streams: Streams,
) -> tuple[Restriction, ...]:
    own = streams_of(left), streams_of(right)
    if target not in own[0] | own[1] or len(own[0] | own[1]) < 2:
        return ()
    direct: Restriction | None = None
    for of, other, side, more, kind in (
        (own[0], own[1], left, right, sign),
        (own[1], own[0], right, left, _FLIPPED[sign]),
    ):
        if of == {target} and target not in other and other:
            parts = compared_parts(side, more, streams)
            if parts is not None:
                direct = Restriction(conjunct, parts[0], kind, parts[1])
    is_column = direct is not None and not isinstance(direct.part.expression, Call)
    if direct is not None and (is_column or sign == "="):
        return (direct,)
    rearranged = _rearranged(target, conjunct, sign, left, right, streams)
    best = rearranged if rearranged is not None else direct
    return (best,) if best is not None else ()


def _rearranged(
    target: str,
    conjunct: Expression,
    sign: Sign,
    left: Expression,
    right: Expression,
    streams: Streams,
) -> Restriction | None:
    """None unless the stream has one atom, and others have the rest."""
    sides = linear(left, streams), linear(right, streams)
    found = difference(*sides)
    if found is None:
        return None
    own = [atom for atom in found.terms if streams_of(atom) == {target}]
    if len(own) != 1 or len(found.terms) < 2 or not found.terms[own[0]]:
        return None
    (atom,) = own
    is_turned = found.terms[atom] < 0
    kind = _FLIPPED[sign] if is_turned else sign
    is_left = sides[0] is not None and atom in sides[0].terms
    is_true_of_nan = sign in (">", ">=") if is_left else sign in ("<", "<=")
    takes_nan = is_true_of_nan and kind in ("<", "<=")
    bound = bound_of(atom, found)
    match atom:
        case Call("date_bin", (Constant(Duration(slide_us)), of)) if slide_us > 0:
            # A window begins by the time, and less than a slide before it.
            atom = of
            if kind in ("<", "<=", "="):
                bound = replace(bound, constant=bound.constant + slide_us)
            kind = "<=" if kind == "=" else kind
    part = key_part(atom, streams)
    takes_nan = takes_nan and pa.types.is_floating(part.type)
    # A sum of several streams may overflow where it is compared, which is an error.
    is_apart = all(len(streams_of(side)) < 2 for side in (left, right))
    is_distance = isinstance(conjunct, Compare) and _is_distance(conjunct)
    # The begin of a window bounds the time in it, but not exactly.
    is_exact = (is_apart or is_distance) and atom is own[0]
    whole = whole_bound(atom, found, streams) if is_exact else None
    return Restriction(conjunct, part, kind, bound, takes_nan, whole)


def _is_distance(conjunct: Compare) -> bool:
    """Whether a distance of two numbers is compared with a constant."""
    match conjunct:
        case Compare(">" | ">=", Constant(), Call("abs", (_,))):
            return True
        case Compare("<" | "<=", Call("abs", (_,)), Constant()):
            return True
    return False


class Range:
    """The range of a part of a key, by some of its restrictions."""

    def __init__(self, restrictions: Sequence[Restriction]) -> None:
        assert restrictions
        self.part = restrictions[0].part
        self.restrictions = tuple(restrictions)
        self.lower = tuple(each for each in restrictions if each.is_lower)
        self.upper = tuple(each for each in restrictions if each.is_upper)
        #: Whether the limits themselves belong to it; more may than do.
        self.includes_low = any(each.sign != ">" or not each.is_exact for each in self.lower)
        self.includes_high = any(each.sign != "<" or not each.is_exact for each in self.upper)
        #: Whether a stored NaN is a candidate beside it.
        self.takes_nan = bool(self.upper) and all(each.takes_nan for each in self.upper)

    def is_of(self, conjunct: Expression) -> bool:
        """Whether a conjunct is part of it."""
        return any(each.conjunct == conjunct for each in self.restrictions)

    def exactly(self) -> "Range | None":
        """The same range by exact bounds; None if not all of it has some."""
        found = []
        for each in self.restrictions:
            if not each.is_exact:
                if each.whole is None:
                    return None
                each = replace(each, bound=each.whole)
            found.append(each)
        return Range(found)

    @property
    def answered(self) -> frozenset[Expression]:
        """The conjuncts that hold for all that lies in it, where no bound fails."""
        signs = {each.sign for each in self.restrictions if each.is_exact}
        is_mixed = {">", ">="} <= signs or {"<", "<="} <= signs
        if is_mixed or self.part.may_fail or not all(each.is_exact for each in self.restrictions):
            return frozenset()
        return frozenset(each.conjunct for each in self.restrictions)

    def failing(self, columns: Values, rows: int) -> frozenset[Expression]:
        """The conjuncts that, as they are written, fail on a row whatever its partner is."""
        return frozenset(
            each.conjunct
            for each in self.restrictions
            if isinstance(each.bound, KeyPart) and each.bound.fails(columns, rows)
        )

    def limits(
        self, columns: Values, rows: int
    ) -> tuple[pa.Array | None, pa.Array | None, npt.NDArray[np.bool_]]:
        """Of each row the lower and the upper limit, None where there is none, and whether the
        range is known: where it is not, nothing matches."""
        known = np.ones(rows, np.bool_)
        found: list[pa.Array | None] = []
        for restrictions, is_low in ((self.lower, True), (self.upper, False)):
            values = [_limit(each, columns, rows, is_low=is_low) for each in restrictions]
            for each in values:
                known &= np.asarray(each.is_valid().to_numpy(zero_copy_only=False))
            found.append(_narrowest(values, "greatest" if is_low else "least"))
        return found[0], found[1], known


def _limit(restriction: Restriction, columns: Values, rows: int, *, is_low: bool) -> pa.Array:
    bound = restriction.bound
    if isinstance(bound, KeyPart):
        return bound.values(columns, rows)
    if isinstance(bound, WholeBound):
        return bound.limits(columns, restriction.part.type, is_low=is_low)
    least, most, is_null = bound.widened(columns, rows)
    keys = as_keys(least if is_low else most, restriction.part.type, is_low=is_low)
    if not is_null.any():
        return keys
    return keys.take(pa.array(np.arange(rows), pa.int64(), mask=is_null))


def _narrowest(values: Sequence[pa.Array], name: str) -> pa.Array | None:
    if len(values) < 2:
        return values[0] if values else None
    columns = [Column("", str(at)) for at in range(len(values))]
    return evaluated(Call(name, tuple(columns)), lambda c: values[int(c.name)], len(values[0]))
