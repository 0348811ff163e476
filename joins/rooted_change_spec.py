"""Left, semi and anti joins by several keys that say what changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from joins.change_spec import FINAL, check_emit, check_operation, with_operation
from joins.graph_spec import GraphSpec
from joins.join_types import Tree, joins_of
from joins.rooted_joins import RootedJoins, rooted_joins
from joins.tree_rows import shown_in_order, tree_rows
from lsmstate.errors import InvalidArgumentError
from lsmstate.null_safe_store import null_safe_schema
from lsmstate.store import StreamSchema


@dataclass(frozen=True)
class RootedChangeSpec:
    """Made by ``of``."""

    graph: GraphSpec
    """The streams as they are stored, without operation columns, and their keys."""
    tree: Tree
    joins: RootedJoins
    operations: Mapping[str, str]
    """The operation column of each stream that is a changelog."""

    @classmethod
    def of(
        cls, graph: GraphSpec, tree: Tree, emit: str, operations: Mapping[str, str]
    ) -> "RootedChangeSpec":
        """InvalidArgumentError names what does not fit."""
        check_emit(tree, emit, operations)
        if emit != "changes" or any(join.bounds for join in joins_of(tree)):
            raise InvalidArgumentError(
                f"{tree}: by several keys say emit='changes', which tells of what comes and goes, "
                f"or with time intervals emit={FINAL!r}"
            )
        if any(join.kind in ("right", "full") for join in joins_of(tree)):
            raise InvalidArgumentError(
                f"{tree}: by several keys there are inner, left, semi and anti joins; put the "
                "stream all of whose rows are to be kept first, as in b LEFT JOIN a, and make full "
                "joins by one common key in a query of their own"
            )
        (joins,) = rooted_joins(tree, graph)
        for step in joins.steps:
            if len({key.earlier for key in step.keys}) > 1:
                raise InvalidArgumentError(
                    f"{tree}: {step.stream!r} is compared with several streams; by several keys, "
                    "types other than inner ask for one: compare it with one of them, and filter "
                    "the result for the rest where all joins are inner"
                )
        looked_up = [(step.stream, step.classes) for step in joins.steps]
        looked_up += [(step.keys[0].earlier, step.classes) for step in joins.steps]
        spec = cls(replace(graph, more_indexes=tuple(looked_up)), tree, joins, dict(operations))
        check_operation(spec.output_schema)
        return spec

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.graph.streams

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The streams that have columns in a result, in the streams' order."""
        return shown_in_order(self.tree, self.streams)

    @cached_property
    def rows_schema(self) -> pa.Schema:
        """The columns of the streams that are shown; null where a result has no row of one."""
        return tree_rows(self.tree, self.graph.shown_rows)

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The operation, and those."""
        return with_operation(self.rows_schema)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes, as a store is opened with; and all rows of a root that is a changelog, of
        which those with nulls are in no index."""
        root = self.joins.root
        if root not in self.operations:
            return self.graph.stream_schemas
        key = self.graph.key_schema(self.graph.held_by(root))
        rows = StreamSchema(all_rows(root), null_safe_schema(key), self.streams[root])
        return (*self.graph.stream_schemas, rows)

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.graph.check_stream(stream)


def all_rows(stream: str) -> str:
    """The store's stream of the rows of ``stream`` whatever their keys are."""
    return f"{stream} (all rows)"
