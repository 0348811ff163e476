"""GraphSpec: streams without a common key, their key classes, and the indexes that they need.

- The join graph has an edge between two streams that share a key class. It may be a chain, a star,
  a tree or have cycles, but it is connected.
- A stream has one index per set of classes by which a neighbour can probe it. Each index is a
  stream of the store that holds all rows of its stream.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import (
    check_differences,
    class_type,
    key_classes,
    written_pairs,
)
from lsmstate.joins.conditions.key_types import cast_key
from lsmstate.joins.conditions.names import unknown
from lsmstate.joins.specs.described import described
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams, joined_schema
from lsmstate.store import StreamSchema


@dataclass(frozen=True)
class KeyClass:
    """Columns that are equal in every result, one per stream that holds the class."""

    columns: Mapping[str, str]
    type: pa.DataType
    """In which they are compared."""
    written: Mapping[str, str]
    """The same columns as the condition names them: others where somebody converted them."""

    @property
    def name(self) -> str:
        """The class's first column, ``stream.column``."""
        stream, column = next(iter(self.written.items()))
        return f"{stream}.{column}"

    def __str__(self) -> str:
        return " = ".join(f"{stream}.{column}" for stream, column in self.written.items())


@dataclass(frozen=True)
class Index:
    """A stream of the store: the rows of ``stream`` by their values of ``classes``."""

    name: str
    stream: str
    classes: tuple[int, ...]
    """Positions in ``GraphSpec.classes``, ascending."""


@dataclass(frozen=True)
class GraphSpec:
    """Streams joined by key classes of which each holds some; made by ``GraphSpec.create``.

    ``shown`` says how many of a stream's first columns are part of a result: keys that had to be
    converted by somebody else may be stored beside the row.
    """

    streams: Mapping[str, pa.Schema]
    classes: tuple[KeyClass, ...]
    shown: Mapping[str, int]
    more_indexes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Streams and sets of classes that rows are looked up by beside the neighbours' ones."""
    event_time: ClassVar[None] = None

    @classmethod
    def create(
        cls, streams: Mapping[str, pa.Schema], on: str, *, splits: bool = False
    ) -> "GraphSpec":
        """Check the streams and the condition; ``splits`` as ``key_classes`` has it.
        InvalidArgumentError names what does not fit."""
        check_streams(streams)
        classes = []
        written = written_pairs(streams, on)
        for members in key_classes(streams, on, splits=splits):
            holders = {column.stream: column.name for column in members}
            columns = {name: holders[name] for name in streams if name in holders}
            check_differences(streams, columns, written)
            classes.append(KeyClass(columns, class_type(streams, columns), columns))
        # So that two ways of writing one condition give one spec.
        places = {(s, c): place for s in streams for place, c in enumerate(streams[s].names)}
        names = list(streams)
        classes.sort(key=lambda c: [(names.index(s), places[s, n]) for s, n in c.columns.items()])
        spec = cls(dict(streams), tuple(classes), {name: len(streams[name]) for name in streams})
        spec._check_connected()
        assert len(spec.output_schema) == sum(spec.shown.values())
        return spec

    @property
    def graph(self) -> "GraphSpec":
        """Itself, as joins that are built on it have it."""
        return self

    @property
    def key_columns(self) -> tuple[Mapping[str, str], ...]:
        """Columns that are equal in a result, by their streams."""
        return tuple(each.columns for each in self.classes)

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The shown columns of all streams, in the streams' order."""
        return joined_schema(self.shown_rows)

    @cached_property
    def shown_rows(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream that are part of a result."""
        return {name: pa.schema(list(s)[: self.shown[name]]) for name, s in self.streams.items()}

    @cached_property
    def indexes(self) -> tuple[Index, ...]:
        """Of every stream the sets of classes it shares with another one, and more, each once."""
        found = []
        for name in self.streams:
            others = (other for other in self.streams if other != name)
            shared = {self._shared(name, other) for other in others} - {()}
            shared |= {classes for stream, classes in self.more_indexes if stream == name}
            for classes in sorted(shared):
                columns = ", ".join(self._column_name(name, number) for number in classes)
                found.append(Index(f"{name}({columns})", name, classes))
        return tuple(found)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The indexes, as a store is opened with."""
        return tuple(
            StreamSchema(index.name, self.key_schema(index.classes), self.streams[index.stream])
            for index in self.indexes
        )

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, whose rows it holds."""
        return {index.name: index.stream for index in self.indexes}

    def key_schema(self, classes: Iterable[int]) -> pa.Schema:
        """The common types of some classes, named after their numbers."""
        return pa.schema([(f"k{number}", self.classes[number].type) for number in classes])

    def key_batch(
        self, stream: str, batch: pa.RecordBatch, classes: Iterable[int]
    ) -> pa.RecordBatch:
        """A stream's values of some classes that it holds, in the common types."""
        wanted = list(classes)
        columns = [
            cast_key(batch.column(self.classes[n].columns[stream]), self.classes[n].type)
            for n in wanted
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema(wanted))

    def held_by(self, stream: str) -> tuple[int, ...]:
        """The classes a stream holds."""
        return tuple(n for n, found in enumerate(self.classes) if stream in found.columns)

    def indexes_from(self, bound: Collection[str], stream: str) -> list[Index]:
        """By which indexes rows of ``stream`` are found once those of ``bound`` are known, without
        those whose classes another one has too; none if no bound stream is a neighbour."""
        known = {number for name in bound for number in self.held_by(name)}
        usable = [i for i in self.indexes if i.stream == stream and known.issuperset(i.classes)]
        return [i for i in usable if not any(set(i.classes) < set(o.classes) for o in usable)]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """What each class is called: by its first column, or by all where that is in several."""
        firsts = [key_class.name for key_class in self.classes]
        return tuple(
            name if firsts.index(name) == number else str(self.classes[number])
            for number, name in enumerate(firsts)
        )

    def computed(self, stream: str) -> Sequence[str]:
        """None: keys are made of the rows."""
        return ()

    def equal_columns(self) -> list[list[str]]:
        """The columns of each key, as ``stream.column``."""
        return [[f"{name}.{c}" for name, c in each.columns.items()] for each in self.classes]

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(self.equal_columns())

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise unknown("stream", stream, self.streams)

    def _column_name(self, stream: str, number: int) -> str:
        """A class's column as indexes name it: with the class's number where an earlier class
        has it too, in a type that may be another."""
        column = self.classes[number].written[stream]
        is_again = any(c.written.get(stream) == column for c in self.classes[:number])
        return f"{column} #{number}" if is_again else column

    def _shared(self, stream: str, other: str) -> tuple[int, ...]:
        return tuple(n for n in self.held_by(stream) if other in self.classes[n].columns)

    def _check_connected(self) -> None:
        reached = [next(iter(self.streams))]
        for name in reached:
            near = (o for o in self.streams if o not in reached and self._shared(name, o))
            reached.extend(near)
        apart = [name for name in self.streams if name not in reached]
        if apart:
            raise InvalidArgumentError(
                f"join condition: stream {apart[0]!r} is not connected to "
                f"{', '.join(repr(name) for name in reached)}; equate one of its columns with one "
                "of theirs"
            )


def create_spec(
    streams: Mapping[str, pa.Schema], on: Condition, *, splits: bool = False
) -> JoinSpec | GraphSpec:
    """A JoinSpec where all streams share one common key, each of its columns in one class, a
    GraphSpec otherwise; ``splits`` as ``key_classes`` has it. InvalidArgumentError names what does
    not fit."""
    if isinstance(on, str):
        check_streams(streams)
        classes = key_classes(streams, on, splits=splits)
        columns = [column for members in classes for column in members]
        is_common = all(len(members) == len(streams) for members in classes)
        if not is_common or len(set(columns)) < len(columns):
            return GraphSpec.create(streams, on, splits=splits)
    return JoinSpec.create(streams, on)
