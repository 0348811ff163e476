"""Which conditions a similarity join answers: a distance of two streams that is at most a number.

``a.tenant = b.tenant AND l2_distance(a.v, b.v) <= 0.2 AND a.n < b.n`` compares ``a.v`` with
``b.v`` where the tenants are equal, and filters the pairs by the rest.

Spark's own functions of vectors compute in float32. Under their names the index looks a little
further than the condition says, and the condition itself decides as part of the rest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import equated
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import (
    Between,
    Call,
    Compare,
    Constant,
    Expression,
    Unknown,
)
from lsmstate.joins.specs.similarity import SimilaritySpec

#: By function, its metric.
METRIC_OF: Final = {
    "l2_distance": "l2",
    "cosine_distance": "cosine",
    "angular_distance": "angular",
    "manhattan_distance": "manhattan",
    "chebyshev_distance": "chebyshev",
    "hamming_distance": "hamming",
    "haversine_distance": "haversine",
    "jaccard_distance": "jaccard",
    "levenshtein": "levenshtein",
}
#: Spark's functions, which compute in float32.
_SPARKS: Final = {"vector_l2_distance": "l2", "vector_cosine_similarity": "cosine"}
_NAMES: Final = re.compile("|".join((*METRIC_OF, *_SPARKS)), re.IGNORECASE)
#: A call of two columns.
_OF_COLUMNS: Final = re.compile(r"\s*\w+\s*\(\s*[\w.`]+\s*,\s*[\w.`]+\s*\)\s*")
#: What float32 may lose, of a length in proportion and of a cosine: n products are off by less than
#: n + 2 units of 2**-24, and there are no vectors of 80,000 components.
_LOST: Final = 0.01
#: Lengths whose squares float32 does not hold.
_TINY: Final = 1e-15
_FLIPPED: Final[Mapping[str, str]] = {"<=": ">=", "<": ">", ">=": "<=", ">": "<"}


@dataclass(frozen=True)
class SimilarCondition:
    """A condition as a similarity join answers it."""

    spec: SimilaritySpec
    rest: tuple[str, ...]
    """Conjuncts that the pairs have to keep beside, as they were written."""


def similar_condition(streams: Mapping[str, pa.Schema], on: object) -> SimilarCondition | None:
    """Read a condition. None if it is none of two streams with a distance that is bounded, or if it
    has something that a similarity join does not take; then it is read in another way."""
    if not isinstance(on, str) or len(streams) != 2 or not _NAMES.search(on):
        return None
    columns = {name: schema.names for name, schema in streams.items()}
    try:
        conjuncts = parse_conjuncts(on, columns)
        places = [place for place, each in enumerate(conjuncts) if _bound(each.predicate)]
        if not places:
            return None
        found = _bound(conjuncts[places[0]].predicate)
        assert found is not None
        metric, (one, two), threshold, is_sparks = found
        own = {one.stream: one.name, two.stream: two.name}
        if set(own) != set(streams):
            return None
        keys: dict[str, list[str]] = {name: [] for name in streams}
        rest = []
        for place, each in enumerate(conjuncts):
            pair = equated(each.predicate)
            if place == places[0] and not is_sparks:
                continue
            if pair is not None and _is_alike(pair, streams):
                for column in pair:
                    keys[column.stream].append(column.name)
            else:
                rest.append(each.text)
        first, last = streams
        return SimilarCondition(
            SimilaritySpec.of(
                streams,
                f"{first}.{own[first]} ~ {last}.{own[last]}",
                metric=metric,
                threshold=threshold,
                by=keys,
                distance=None,
            ),
            tuple(rest),
        )
    except InvalidArgumentError:
        return None  # who reads it in another way tells what does not fit


def _is_alike(pair: tuple[Column, Column], streams: Mapping[str, pa.Schema]) -> bool:
    """Whether two columns of two streams have one type, so that nothing is cast."""
    one, two = (streams[column.stream].field(column.name).type for column in pair)
    return bool(pair[0].stream != pair[1].stream and one == two)


def _bound(predicate: Expression) -> tuple[str, tuple[Column, Column], float, bool] | None:
    """The metric, the two columns and the largest distance of a conjunct such as
    ``l2_distance(a.v, b.v) <= 0.2``, and whether Spark has to decide."""
    match predicate:
        case Compare(written, left, right) if written in _FLIPPED:
            sign: str = written
            if isinstance(left, Constant):
                sign, left, right = _FLIPPED[sign], right, left
        case Between(left, Constant(int(low) | float(low)), right) if low <= 0:
            sign = "<="
        case _:
            return None
    if not _is_number(right):
        return None
    assert isinstance(right, Constant)
    if isinstance(left, Unknown):
        return _by_spark(left, sign, float(right.value))  # type: ignore[arg-type]
    if not isinstance(left, Call) or left.name not in METRIC_OF or sign not in ("<", "<="):
        return None
    columns = left.arguments
    if len(columns) != 2 or not all(isinstance(each, Column) for each in columns):
        return None
    one, two = columns
    assert isinstance(one, Column)
    assert isinstance(two, Column)
    threshold = float(right.value)  # type: ignore[arg-type]
    if sign == "<":
        threshold = float(np.nextafter(threshold, -np.inf))
    return METRIC_OF[left.name], (one, two), threshold, False


def _by_spark(
    call: Unknown, sign: str, limit: float
) -> tuple[str, tuple[Column, Column], float, bool] | None:
    """The same of one of Spark's functions, a little further than it says."""
    metric = _SPARKS.get(call.text.split("(")[0].strip().lower())
    if metric is None or len(call.columns) != 2 or not _OF_COLUMNS.fullmatch(call.text):
        return None
    one, two = call.columns
    if metric == "l2" and sign in ("<", "<=") and limit >= 0:
        return metric, (one, two), limit * (1 + _LOST) + _TINY, True
    if metric == "cosine" and sign in (">", ">=") and limit <= 1:
        return metric, (one, two), 1 - limit + _LOST, True
    return None


def _is_number(part: Expression) -> bool:
    if not isinstance(part, Constant) or isinstance(part.value, bool | str):
        return False
    try:
        return bool(np.isfinite(float(part.value)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
