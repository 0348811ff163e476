"""Whether a join is one by any condition, because equalities do not connect its streams or because
a range beside them finds fewer rows; and the spec of such a join."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import equated, with_computed
from lsmstate.joins.conditions.from_clause import (
    TwoSided,
    inner_condition,
    is_from_clause,
    two_sided,
)
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.conditions.predicate import text_of
from lsmstate.joins.specs.changes import FINAL, operation_columns
from lsmstate.joins.specs.event_time import (
    NO_TIME,
    EventTime,
    TimedThetaSpec,
    TimeOptions,
    time_bounds,
)
from lsmstate.joins.specs.one_key import Condition, check_streams
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_sides import ThetaChangeSpec, ThetaFinalSpec, ThetaSides
from lsmstate.joins.specs.typed_condition import How, kinds_of

#: Specs of joins by any condition.
AnySpec = ThetaSpec | TimedThetaSpec | ThetaChangeSpec | ThetaFinalSpec


def theta_spec(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
    told: TimeOptions = NO_TIME,
) -> AnySpec | None:
    """The spec of a join by any condition; None where the streams share keys, and no range beside
    the keys is bounded from both sides. InvalidArgumentError for what such a join has not, and
    names what does not fit."""
    check_streams(streams)
    columns = {name: schema.names for name, schema in streams.items()}
    asked = asked_join(columns, on, how)
    if asked is None:
        return None
    if not equalities_connect(asked.condition, columns, streams):
        return made_spec(streams, asked, emit, changes, told)
    if len(streams) > 2 or told.columns or told.retention:
        return None
    try:
        found = made_spec(streams, asked, emit, changes, told)
    except InvalidArgumentError:
        return None  # the join by keys has more types of them, and tells what does not fit
    return found if finds_fewer(found) else None


def asked_join(
    columns: Mapping[str, Sequence[str]], on: Condition, how: How = "inner"
) -> TwoSided | None:
    """The condition and the type of a join that may be by any condition: inner of any number of
    streams, or of two streams. None for others."""
    if not isinstance(on, str):
        return None
    first, second, *_ = columns
    if is_from_clause(on):
        if is_outer(how):
            return None
        inner = inner_condition(on, columns)
        return two_sided(on, columns) if inner is None else TwoSided("inner", first, second, inner)
    if not is_outer(how):
        return TwoSided("inner", first, second, on)
    if len(columns) > 2:
        return None
    return TwoSided(kinds_of(columns, how)[second], first, second, on)


def made_spec(
    streams: Mapping[str, pa.Schema],
    asked: TwoSided,
    emit: str,
    changes: Mapping[str, str] | None,
    told: TimeOptions,
) -> AnySpec:
    """The spec of a join by any condition. InvalidArgumentError names what does not fit."""
    operations = operation_columns(streams, changes or {})
    stored = {
        name: pa.schema([field for field in schema if field.name != operations.get(name)])
        for name, schema in streams.items()
    }
    is_final = emit == FINAL and not operations
    if asked.kind == "inner" and not operations and (emit == "append" or is_final):
        return _inner(ThetaSpec.create(stored, asked.condition), told)
    if len(streams) > 2:
        given = f"changes={dict(operations)!r}" if operations else f"emit={emit!r}"
        raise InvalidArgumentError(
            f"{given}: no equality connects all of the streams {', '.join(streams)} in "
            f"{asked.condition!r}, and results of such a join of more than two streams are never "
            "retracted; leave it out, connect the streams by equalities, or join two of them"
        )
    theta = ThetaSpec.create(stored, asked.condition)
    sides = ThetaSides.of(theta, asked.kind, asked.left, asked.right)
    if is_final:
        return ThetaFinalSpec.of(sides, told)
    return ThetaChangeSpec.of(sides, emit, operations, told)


def _inner(spec: ThetaSpec, told: TimeOptions) -> ThetaSpec | TimedThetaSpec:
    """An inner join, which forgets rows where a stream has an event time."""
    if not told.columns and not told.retention:
        return spec
    bounds, _ = time_bounds(spec.streams, map(text_of, spec.conjuncts))
    timing = EventTime.create(spec, told.columns, bounds, told.retention, told.late)
    return TimedThetaSpec(spec, timing)


def finds_fewer(found: AnySpec, *, is_aggregated: bool = False) -> bool:
    """Whether rows of each stream are found by an equality, and by a range inside its key; of joins
    that are not inner a range other than a time interval. The range has two ends, or one if results
    of an inner join are aggregated inside it: rows are counted by the range then."""
    takes_one_end = is_aggregated and found.sides is None
    return found.event_time is None and _has_narrow_range(found.theta, takes_one_end=takes_one_end)


def filtered_theta(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How,
    emit: str,
    changes: Mapping[str, str] | None,
    told: TimeOptions,
) -> ThetaSpec | None:
    """The spec of an inner join by equalities and other conditions, whose intermediate results are
    to keep all of them. None if it has equalities alone, or forgets rows, or retracts results."""
    if not isinstance(on, str) or is_outer(how) or emit not in ("append", FINAL) or changes:
        return None
    columns = {name: schema.names for name, schema in streams.items()}
    found = inner_condition(on, columns) if is_from_clause(on) else on
    if found is None or told.columns or told.retention:
        return None
    if all(equated(each.predicate) for each in parse_conjuncts(found, columns)):
        return None
    return ThetaSpec.create(streams, found)


def is_outer(how: How) -> bool:
    """Whether a type of join is named that is not inner; wrong ones are told elsewhere."""
    kinds = how.values() if isinstance(how, Mapping) else [how]
    return any(str(kind).lower().strip() != "inner" for kind in kinds)


def equalities_connect(
    on: str,
    columns: Mapping[str, Sequence[str]],
    streams: Mapping[str, pa.Schema] | None = None,
) -> bool:
    """Whether each stream has a column that is equal to one of another, and all hang together.
    ``streams``: their types, if text is to be compared with a number in the number's type."""
    text, computed = with_computed(on, columns, streams)
    found = {name: [*names, *computed.of.get(name, {})] for name, names in columns.items()}
    pairs = [equated(each.predicate) for each in parse_conjuncts(text, found)]
    reached = [next(iter(columns))]
    for name in reached:
        for pair in pairs:
            if pair is not None and name in (pair[0].stream, pair[1].stream):
                other = pair[0].stream if pair[1].stream == name else pair[1].stream
                reached += [other] if other not in reached else []
    return len(reached) == len(columns)


def _has_narrow_range(spec: ThetaSpec, *, takes_one_end: bool) -> bool:
    """Whether rows of each stream are found by an equality, and by a range inside its key."""
    steps = [step for own in spec.steps.values() for step in own]
    return all(
        step.equal
        and step.low is not None
        and (takes_one_end or step.high is not None or (step.low.lower and step.low.upper))
        for step in steps
    )
