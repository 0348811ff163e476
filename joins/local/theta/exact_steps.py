"""Steps whose ranges hold all that matches, and nothing else, so that no candidate is judged.

A rearranged bound of whole numbers is exact. But a candidate is evaluated as it is written, and
that fails where a sum overflows. So an exact step stands in for a step only where no sum can.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import Values, type_of
from lsmstate.joins.conditions.linear import WholeBound
from lsmstate.joins.conditions.predicate import (
    Call,
    Compare,
    Constant,
    Expression,
    all_parts,
)
from lsmstate.joins.specs.theta import Step

#: Sums of so many numbers, none of which is greater, do not overflow. A stored number is near a
#: known one.
MOST_TERMS: Final = 4
MOST: Final = 1 << 59
_SUMS: Final = ("+", "-", "negative", "abs")


def exact_step(step: Step, streams: Mapping[str, pa.Schema]) -> Step | None:
    """The step by exact bounds from both sides; None if it has none, or not by sums alone."""
    found = step.counting
    if found is None or found.low is None or not (found.low.lower and found.low.upper):
        return None
    conjuncts = {each.conjunct for each in found.low.restrictions}
    return found if all(_is_sum(each, streams) for each in conjuncts) else None


def are_small(step: Step, columns: Values) -> bool:
    """Whether no sum of an exact step overflows. ``columns``: of the known combinations."""
    assert step.low is not None
    for each in step.low.restrictions:
        if isinstance(each.bound, WholeBound):
            ends = pc.min_max(columns(each.bound.column)).as_py()
            if ends["min"] is None:  # all are null
                continue
            if max(-ends["min"], ends["max"]) + abs(each.bound.added) >= MOST:
                return False
    return True


def _is_sum(conjunct: Expression, streams: Mapping[str, pa.Schema]) -> bool:
    """Whether it compares sums of few columns and constants, or a column with one."""
    parts = list(all_parts(conjunct))
    leaves = [part for part in parts if isinstance(part, Column | Constant)]
    return len(leaves) <= MOST_TERMS and all(_is_of_sum(part, streams) for part in parts)


def _is_of_sum(part: Expression, streams: Mapping[str, pa.Schema]) -> bool:
    match part:
        case Column():
            return bool(type_of(part, streams) == pa.int64())
        case Constant(value):
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST
        case Call(name, _):
            return name in _SUMS
        case Compare():
            return True
    return False
