"""Whether a join is one by any condition, because equalities do not connect its streams or because
a range beside them finds fewer rows."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import equated, with_computed
from lsmstate.joins.conditions.from_clause import inner_condition, is_from_clause
from lsmstate.joins.conditions.parser import parse_conjuncts
from lsmstate.joins.specs.changes import FINAL
from lsmstate.joins.specs.event_time import NO_TIME, TimeOptions
from lsmstate.joins.specs.one_key import Condition, check_streams
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.typed_condition import How


def theta_spec(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
    told: TimeOptions = NO_TIME,
) -> ThetaSpec | None:
    """The spec of an inner join by any condition; None where the streams share keys, and no range
    beside the keys is bounded from both sides. InvalidArgumentError for what such a join has not,
    and names what does not fit."""
    check_streams(streams)
    columns = {name: schema.names for name, schema in streams.items()}
    if not isinstance(on, str) or is_outer(how):
        return None
    if is_from_clause(on):
        found = inner_condition(on, columns)
        if found is None or equalities_connect(found, columns, streams):
            return None
        on = found
    is_plain = emit in ("append", FINAL) and not changes
    is_timed = bool(told.columns or told.retention)
    if equalities_connect(on, columns, streams):
        if not is_plain or is_timed or len(streams) > 2:
            return None
        try:
            spec = ThetaSpec.create(streams, on)
        except InvalidArgumentError:
            return None  # the join by keys has more types of them, and tells what does not fit
        return spec if _has_narrow_range(spec) else None
    if not is_plain:
        given = f"changes={dict(changes)!r}" if changes else f"emit={emit!r}"
        raise InvalidArgumentError(
            f"{given}: no equality connects all of the streams {', '.join(columns)} in {on!r}, and "
            "results of such a join are never retracted; leave it out, or connect the streams by "
            "equalities"
        )
    if is_timed:
        name = "event_time" if told.columns else "retention"
        raise InvalidArgumentError(
            f"{name}: no equality connects all of the streams {', '.join(columns)} in {on!r}, and "
            f"such a join keeps all its rows; leave {name} out, or connect the streams by "
            "equalities"
        )
    return ThetaSpec.create(streams, on)


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


def _has_narrow_range(spec: ThetaSpec) -> bool:
    """Whether rows of each stream are found by an equality, and by a range inside its key."""
    steps = [step for own in spec.steps.values() for step in own]
    return all(
        step.equal
        and step.low is not None
        and (step.high is not None or (step.low.lower and step.low.upper))
        for step in steps
    )
