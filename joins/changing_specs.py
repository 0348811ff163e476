"""Which spec a join has that is more than an inner one of rows that stay."""

from collections.abc import Mapping

import pyarrow as pa

from joins.change_spec import ChangeSpec, GraphChangeSpec, check_no_keys
from joins.changes import operation_columns
from joins.graph_spec import GraphSpec, create_spec
from joins.how import How, typed_condition
from joins.join_types import Tree
from joins.rooted_change_spec import RootedChangeSpec
from joins.spec import Condition, JoinSpec, check_streams
from joins.split_condition import split_condition
from lsmstate.errors import InvalidArgumentError

ChangingSpec = ChangeSpec | GraphChangeSpec | RootedChangeSpec


def create_join(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
) -> JoinSpec | GraphSpec | ChangingSpec:
    """What is joined. ``changes``: the operation columns of streams that are changelogs; see
    ``typed_condition`` for ``on`` and ``how``. InvalidArgumentError names what does not fit."""
    check_streams(streams)
    operations = operation_columns(streams, changes or {})
    stored = {
        name: pa.schema([f for f in schema if f.name != operations.get(name)])
        for name, schema in streams.items()
    }
    typed = typed_condition({name: s.names for name, s in streams.items()}, on, how)
    if typed.tree is None and isinstance(typed.on, str) and split_condition(typed.on).rest:
        raise InvalidArgumentError(
            f"join condition {split_condition(typed.on).rest[0]!r}: changelogs are joined by "
            "equalities of keys alone; filter the inputs before, or the result"
        )
    check_no_keys(create_spec(streams, typed.on), operations)
    spec = create_spec(stored, typed.on)
    if typed.tree is None and emit == "append" and not operations:
        return spec
    return changing_spec(spec, typed.tree, emit, operations)


def changing_spec(
    keys: JoinSpec | GraphSpec, tree: Tree | None, emit: str, operations: Mapping[str, str]
) -> ChangingSpec:
    """The spec of a tree of joins, or of inner ones (None), by one common key or by several.
    InvalidArgumentError names what does not fit."""
    if isinstance(keys, JoinSpec):
        return ChangeSpec.of(keys, tree, emit, operations)
    if tree is None:
        return GraphChangeSpec.of(keys, emit, operations)
    return RootedChangeSpec.of(keys, tree, emit, operations)
