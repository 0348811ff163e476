"""Joins of any type by several keys that say what changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import Tree, bounds_of
from lsmstate.joins.specs.changes import FINAL, check_emit, check_operation, with_operation
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.event_time import EventTime, TimeOptions, lasting
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.output_rows import shown_in_order, tree_rows
from lsmstate.joins.specs.rooted_steps import RootedJoins, Step, kept_us, rooted_joins
from lsmstate.store import StreamSchema
from lsmstate.store_base.null_safe import null_safe_schema


@dataclass(frozen=True)
class RootedChangeSpec:
    """Made by ``of``."""

    graph: GraphSpec
    """The streams as they are stored, without operation columns, and their keys."""
    tree: Tree
    parts: tuple[RootedJoins, ...]
    """The tree by its roots."""
    operations: Mapping[str, str]
    """The operation column of each stream that is a changelog."""
    event_time: EventTime | None = None
    """Of joins with time intervals."""
    emits_changes: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        graph: GraphSpec,
        tree: Tree,
        emit: str,
        operations: Mapping[str, str],
        told: TimeOptions,
    ) -> "RootedChangeSpec":
        """``told`` counts where there are time intervals. InvalidArgumentError names what does not
        fit."""
        check_emit(tree, emit, operations)
        if emit != "changes":
            raise InvalidArgumentError(
                f"{tree}: joins by several keys need emit='changes', or with time intervals "
                f"emit={FINAL!r}; give one of them"
            )
        parts = rooted_joins(tree, graph)
        steps = [step for part in parts for step in part.all_steps]
        looked_up = [(step.stream, step.classes) for step in steps]
        looked_up += [(step.earlier, step.earlier_classes) for step in steps]
        timing = None
        if bounds_of(tree):
            timing = lasting(graph, bounds_of(tree), told, emit)
            kept = kept_us(parts, timing.columns, graph.streams)
            timing = replace(timing, kept_us=kept)
        graph = replace(graph, more_indexes=tuple(looked_up))
        spec = cls(graph, tree, parts, dict(operations), timing)
        check_operation(spec.output_schema)
        return spec

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.graph.streams

    @property
    def preserved(self) -> frozenset[str]:
        """The streams whose rows are results without a partner."""
        return frozenset(part.root for part in self.parts)

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
        """The indexes, as a store is opened with; and all rows of roots that are changelogs, of
        which those with nulls are in no index."""
        kept = []
        for root in (part.root for part in self.parts if part.root in self.operations):
            key = null_safe_schema(self.graph.key_schema(self.graph.held_by(root)))
            kept.append(StreamSchema(all_rows(root), key, self.streams[root]))
        schemas = (*self.graph.stream_schemas, *kept)
        return (
            schemas if self.event_time is None else self.event_time.expiring(schemas, self.owners)
        )

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return {**self.graph.owners, **{all_rows(part.root): part.root for part in self.parts}}

    def is_root(self, stream: str) -> bool:
        """Whether there are results of a row that matches nothing at all."""
        return any(part.root == stream for part in self.parts)

    def index(self, stream: str, classes: tuple[int, ...]) -> str:
        """The store's stream of its rows by these classes."""
        indexes = self.graph.indexes
        return next(i.name for i in indexes if (i.stream, i.classes) == (stream, classes))

    def keys_of(self, stream: str) -> tuple[int, ...]:
        """The classes without whose values a row is in no result: none for a root."""
        return () if self.is_root(stream) else self._step_of(stream).classes

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """The intervals without whose times a row is in no result: those of the join that adds it,
        not those that compare others with it. None for a root."""
        return () if self.is_root(stream) else self._step_of(stream).bounds

    def _step_of(self, stream: str) -> Step:
        """The step of a stream that is no root, which has the same join in all parts."""
        steps = (part.step_of(stream) for part in self.parts)
        return next(step for step in steps if step is not None)

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(
            self.graph.equal_columns(),
            joins=str(self.tree),
            emit="changes",
            operations=self.operations,
            bounds=() if self.event_time is None else self.event_time.bounds,
        )

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.graph.check_stream(stream)


def all_rows(stream: str) -> str:
    """The store's stream of the rows of ``stream`` whatever their keys are."""
    return f"{stream} (all rows)"
