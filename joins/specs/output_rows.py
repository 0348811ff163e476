"""The rows that a tree of joins results in: of which streams, and what may be null."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from lsmstate.joins.conditions.join_tree import Tree, nullable_streams, shown_streams
from lsmstate.joins.specs.one_key import joined_schema


def shown_in_order(tree: Tree, streams: Iterable[str]) -> tuple[str, ...]:
    """The streams that have columns in a result, in the streams' order."""
    shown = set(shown_streams(tree))
    return tuple(name for name in streams if name in shown)


def tree_rows(tree: Tree, streams: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns of the streams that are shown; null where a result has no row of one."""
    shown = {name: streams[name] for name in shown_in_order(tree, streams)}
    may_be_null = nullable_streams(tree)
    owners = [name for name, schema in shown.items() for _ in schema]
    return pa.schema(
        field.with_nullable(field.nullable or owner in may_be_null)
        for field, owner in zip(joined_schema(shown), owners, strict=True)
    )
