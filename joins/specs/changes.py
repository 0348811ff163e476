"""Specs of joins with retractions: join types other than inner, and changelogs as inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.intervals import Bound
from lsmstate.joins.conditions.join_tree import Tree, products, takes_back
from lsmstate.joins.conditions.names import named, resolved
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import JoinSpec
from lsmstate.joins.specs.output_rows import shown_in_order, tree_rows
from lsmstate.joins.specs.typed_condition import check_tree, inner_joins
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest
from lsmstate.store_base.null_safe import null_safe_schema

#: What an operation column may hold, and whether the row comes.
OPERATIONS: Final = {"+I": True, "+U": True, "-U": False, "-D": False}
#: The column of a result that says whether it comes (+I) or is taken back (-D).
OPERATION: Final = "op"
FINAL: Final = "final"
EMITS: Final = ("append", "changes", FINAL)
_MOST_STREAMS: Final = 60


@dataclass(frozen=True)
class ChangeSpec:
    """Streams joined by one common key in a tree of joins of any type; made by ``of``."""

    keys: JoinSpec
    """The streams as they are stored, without operation columns, and their key."""
    tree: Tree
    emits_changes: bool
    """Whether results have an operation column."""
    operations: Mapping[str, str] = field(default_factory=dict)
    """The operation column of each stream that is a changelog."""
    event_time: ClassVar[EventTime | None] = None
    graph: ClassVar[None] = None
    parts: ClassVar[None] = None

    @classmethod
    def of(
        cls, keys: JoinSpec, tree: Tree | None, emit: str, operations: Mapping[str, str]
    ) -> "ChangeSpec":
        """``tree``: None for inner joins. InvalidArgumentError names what does not fit."""
        tree = inner_joins(keys) if tree is None else tree
        check_tree(tree, keys)
        check_emit(tree, emit, operations)
        if len(keys.streams) > _MOST_STREAMS:
            raise InvalidArgumentError(
                f"{len(keys.streams)} streams: at most {_MOST_STREAMS} can be joined by types "
                "other than inner or as changelogs; join some of them in a query of their own"
            )
        spec = cls(keys, tree, emit == "changes", dict(operations))
        if spec.emits_changes:
            check_operation(spec.output_schema)
        return spec

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.keys.streams

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The columns of the streams that are shown, after the operation if there is one; null
        where an outer join has no row of the stream."""
        rows = tree_rows(self.tree, self.streams)
        return with_operation(rows) if self.emits_changes else rows

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The streams that have columns in a result, in the streams' order."""
        return shown_in_order(self.tree, self.streams)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams as a store is opened with: those with keys, and of changelogs the rows
        without, where they are results all the same and may be taken back."""
        kept = tuple(
            StreamSchema(null_stream(name), null_safe_schema(self.keys.key_schema), rows)
            for name, rows in self.streams.items()
            if name in self.operations and self.is_preserved(name)
        )
        return self.keys.stream_schemas + kept

    @property
    def preserved(self) -> frozenset[str]:
        """The streams whose rows are results without a partner, also with a null key."""
        return frozenset(filter(self.is_preserved, self.streams))

    def is_preserved(self, stream: str) -> bool:
        """Whether a row that has no partner at all is a result."""
        return products(self.tree, {stream}) == (frozenset({stream}),)

    def computed(self, stream: str) -> Sequence[str]:
        """The key of each row."""
        return self.keys.computed(stream)

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(
            self.keys.equal_columns(),
            joins=str(self.tree),
            emit="changes" if self.emits_changes else "append",
            operations=self.operations,
        )

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.keys.check_stream(stream)


@dataclass(frozen=True)
class GraphChangeSpec:
    """An inner join by several keys that says what changes; made by ``of``."""

    graph: GraphSpec
    """The streams as they are stored, without operation columns, and their keys."""
    operations: Mapping[str, str]
    """The operation column of each stream that is a changelog."""
    event_time: EventTime | None = None
    """Of a join with time intervals."""
    tree: ClassVar[None] = None
    parts: ClassVar[None] = None
    """What joins of other types have."""
    preserved: ClassVar[frozenset[str]] = frozenset()
    emits_changes: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        graph: GraphSpec,
        emit: str,
        operations: Mapping[str, str],
        event_time: EventTime | None = None,
    ) -> "GraphChangeSpec":
        """InvalidArgumentError names what does not fit."""
        check_emit(None, emit, operations)
        spec = cls(graph, dict(operations), event_time)
        check_operation(spec.output_schema)
        return spec

    @property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The streams as they are stored."""
        return self.graph.streams

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The operation, and the columns of all streams."""
        return with_operation(self.graph.output_schema)

    @property
    def shown(self) -> tuple[str, ...]:
        """The streams that have columns in a result: all."""
        return tuple(self.streams)

    @property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes, as a store is opened with."""
        if self.event_time is None:
            return self.graph.stream_schemas
        return self.event_time.store_streams(self.graph)

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return self.graph.owners

    def bounds_of(self, stream: str) -> tuple[Bound, ...]:
        """The intervals without whose times a row is in no result: all of them."""
        return self.event_time.bounds if self.event_time is not None else ()

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(
            self.graph.equal_columns(),
            emit="changes",
            operations=self.operations,
            bounds=self.bounds_of(""),
        )

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        self.graph.check_stream(stream)


def with_operation(fields: Iterable[pa.Field]) -> pa.Schema:
    """The columns of a result that says whether it comes or goes."""
    return pa.schema([pa.field(OPERATION, pa.string(), nullable=False), *fields])


def check_operation(output: pa.Schema) -> None:
    """InvalidArgumentError if another column is called like the operation."""
    if any(name.lower() == OPERATION for name in output.names[1:]):
        raise InvalidArgumentError(
            f"emit='changes' adds a column {OPERATION!r}, and the inputs have one already; "
            "rename theirs, or name it in changes= if it is the operation column"
        )


def null_stream(stream: str) -> str:
    """The store's stream of the rows of ``stream`` that have a null in their key."""
    return f"{stream} (null keys)"


def check_emit(tree: Tree | None, emit: str, operations: Mapping[str, str]) -> None:
    """InvalidArgumentError if the results may be taken back and ``emit`` does not say how."""
    if emit == FINAL:
        raise InvalidArgumentError(
            f"changes={dict(operations)!r} with emit='final': a final result cannot be retracted; "
            "use emit='changes'"
        )
    if emit not in EMITS:
        raise InvalidArgumentError(f"emit={emit!r} is unknown{nearest(emit, EMITS)}")
    if emit == "changes":
        return
    if operations:
        raise InvalidArgumentError(
            f"changes={dict(operations)!r}: a retracted row retracts results; use "
            "emit='changes', which adds a column 'op' for that"
        )
    if tree is not None and takes_back(tree):
        raise InvalidArgumentError(
            f"{tree}: a result without a partner is retracted when a partner comes; use "
            "emit='changes', which adds a column 'op' for that, or emit='final', which waits for "
            "the watermark (inner and semi joins need neither)"
        )


def check_no_keys(spec: JoinSpec | GraphSpec, operations: Mapping[str, str]) -> None:
    """InvalidArgumentError if an operation column is a part of a key."""
    for stream, column in operations.items():
        if column in (columns.get(stream) for columns in spec.key_columns):
            raise InvalidArgumentError(
                f"changes: {stream}.{column} is part of the key, so it cannot be the operation "
                "column; name another one"
            )


def operation_columns(
    streams: Mapping[str, pa.Schema], changes: Mapping[str, str]
) -> dict[str, str]:
    """Per changelog stream its operation column, as the schema spells it."""
    found = {}
    for given, column in named("changes", changes, '{"a": "op"}').items():
        name = resolved("stream", given, streams)
        found[name] = resolved("column", column, streams[name].names, name)
        kind = streams[name].field(found[name]).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidArgumentError(
                f"changes[{given!r}]: column {found[name]!r} is {kind}, operations are text: "
                f"{', '.join(OPERATIONS)}"
            )
    return found
