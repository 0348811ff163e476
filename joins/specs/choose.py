"""Which spec a join has that is more than an inner one of rows that stay."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import split_condition
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import Tree, bounds_of, conditions_of
from lsmstate.joins.specs.changes import (
    ChangeSpec,
    GraphChangeSpec,
    check_no_keys,
    operation_columns,
)
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec
from lsmstate.joins.specs.event_time import NO_TIME, TimeOptions, lasting, time_bounds
from lsmstate.joins.specs.multi_key import GraphSpec, create_spec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams
from lsmstate.joins.specs.typed_condition import How, in_text, typed_condition
from lsmstate.joins.specs.typed_tree import settled

ChangingSpec = ChangeSpec | GraphChangeSpec | RootedChangeSpec


def create_join(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
    told: TimeOptions = NO_TIME,
) -> JoinSpec | GraphSpec | ChangingSpec:
    """What is joined. ``changes``: the operation columns of streams that are changelogs; see
    ``typed_condition`` for ``on`` and ``how``. ``told`` counts where there are time intervals.
    InvalidArgumentError names what does not fit."""
    check_streams(streams)
    operations = operation_columns(streams, changes or {})
    stored = {
        name: pa.schema([f for f in schema if f.name != operations.get(name)])
        for name, schema in streams.items()
    }
    typed = typed_condition({name: s.names for name, s in streams.items()}, on, how)
    tree = settled(typed.tree, stored) if typed.tree is not None else None
    keys, bounds = typed.on, bounds_of(tree) if tree is not None else ()
    if tree is None and isinstance(typed.on, str):
        condition = split_condition(typed.on, {name: s.names for name, s in streams.items()})
        keys = condition.keys
        bounds = changing_bounds(stored, condition.rest)
    splits = tree is not None
    check_no_keys(create_spec(streams, keys, splits=splits), operations)
    if tree is None and emit == "append" and not operations and not bounds:
        return create_spec(stored, keys)
    spec: JoinSpec | GraphSpec
    if bounds or is_conditional(tree):
        text = keys if isinstance(keys, str) else in_text(typed)
        spec = GraphSpec.create(stored, text, splits=splits)
    else:
        spec = create_spec(stored, keys, splits=splits)
    return changing_spec(spec, tree, emit, operations, bounds, told)


def is_conditional(tree: Tree | None) -> bool:
    """Whether more than keys and time intervals says in a tree what matches."""
    return tree is not None and bool(conditions_of(tree))


def changing_bounds(
    streams: Mapping[str, pa.Schema], conjuncts: Sequence[str]
) -> tuple[Bound, ...]:
    """The time intervals that inner joins of changelogs have beside their keys.
    InvalidArgumentError for other conditions, which filter what comes and goes alike."""
    bounds, rest = time_bounds(streams, conjuncts)
    if rest:
        raise InvalidArgumentError(
            f"join condition {rest[0]!r}: inner joins whose results are retracted can have only "
            "equalities of keys and time intervals here; filter the inputs, or the results"
        )
    return bounds


def changing_spec(
    keys: JoinSpec | GraphSpec,
    tree: Tree | None,
    emit: str,
    operations: Mapping[str, str],
    bounds: Sequence[Bound] = (),
    told: TimeOptions = NO_TIME,
) -> ChangingSpec:
    """The spec of a tree of joins, or of inner ones (None), by one common key or by several. With
    ``bounds``, all of its time intervals, or other conditions ``keys`` is a GraphSpec in any case.
    InvalidArgumentError names what does not fit."""
    if isinstance(keys, JoinSpec):
        return ChangeSpec.of(keys, tree, emit, operations)
    if tree is not None:
        return RootedChangeSpec.of(keys, tree, emit, operations, told)
    timing = lasting(keys, bounds, told, emit) if bounds else None
    return GraphChangeSpec.of(keys, emit, operations, timing)
