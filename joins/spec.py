"""What is joined: named streams, their columns, and the common key they share.

All streams of a spec share one composite key; a key class is one column of every stream.
The names of the result's columns follow one rule, ``output_names``.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from joins.condition import Column, parse_condition
from joins.key_types import cast_key, common_key_type
from lsmstate.errors import InvalidArgumentError
from lsmstate.store import StreamSchema

__all__ = ["Condition", "JoinSpec", "common_key_type", "output_names"]

#: SQL text, or the key columns of each stream, or the key columns all streams share by name.
Condition = str | Mapping[str, Sequence[str]] | Sequence[str]


@dataclass(frozen=True)
class JoinSpec:
    """Streams joined by one common key; made by ``JoinSpec.create``.

    ``keys`` holds, per stream, the columns of its key; the n-th columns of all streams are equal
    in a result. Key classes stand in the order of the first stream's columns, so that two ways of
    writing one condition give one spec.
    """

    streams: Mapping[str, pa.Schema]
    keys: Mapping[str, tuple[str, ...]]

    @classmethod
    def create(cls, streams: Mapping[str, pa.Schema], on: Condition) -> "JoinSpec":
        """Check the streams and the condition. InvalidArgumentError names what does not fit."""
        _check_streams(streams)
        if isinstance(on, str):
            keys = _keys_of_condition(streams, on)
        elif isinstance(on, Mapping):
            keys = _keys_of_lists(streams, on)
        else:
            keys = _keys_of_lists(streams, {name: list(on) for name in streams})
        first = next(iter(streams))
        columns = streams[first].names
        order = sorted(range(len(keys[first])), key=lambda k: columns.index(keys[first][k]))
        spec = cls(dict(streams), {name: tuple(keys[name][k] for k in order) for name in streams})
        # Refuse incomparable types and colliding names now, not at the first batch.
        assert len(spec.key_schema) == len(order)
        assert len(spec.output_schema) == sum(len(schema) for schema in streams.values())
        return spec

    @cached_property
    def key_schema(self) -> pa.Schema:
        """The common types of the key, named k0, k1, ..."""
        fields = []
        for k in range(len(next(iter(self.keys.values())))):
            columns = {name: self.keys[name][k] for name in self.streams}
            types = {name: self.streams[name].field(columns[name]).type for name in self.streams}
            try:
                fields.append(pa.field(f"k{k}", common_key_type(list(types.values()))))
            except InvalidArgumentError as error:
                listed = ", ".join(f"{name}.{columns[name]} ({types[name]})" for name in types)
                raise InvalidArgumentError(
                    f"join key {listed}: {error}; cast one of them before the join"
                ) from None
        return pa.schema(fields)

    @cached_property
    def output_schema(self) -> pa.Schema:
        """All columns of all streams, in the streams' order."""
        names = output_names({name: schema.names for name, schema in self.streams.items()})
        return pa.schema(
            field.with_name(name)
            for stream, schema in self.streams.items()
            for field, name in zip(schema, names[stream], strict=True)
        )

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams as a store is opened with."""
        return tuple(
            StreamSchema(name, self.key_schema, schema) for name, schema in self.streams.items()
        )

    def key_batch(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key of each row of a stream's batch, in the common types."""
        columns = [
            cast_key(batch.column(name), field.type)
            for name, field in zip(self.keys[stream], self.key_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema)

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise _unknown("stream", stream, self.streams)


def output_names(streams: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """How the columns of each stream are called in the result.

    A column keeps its name if that is unique over all inputs, without regard to case (as Spark
    sees it: lower case, so ``straße`` is not ``strasse``); otherwise it is called
    ``<stream>_<column>``. InvalidArgumentError if that is taken as well.
    """
    counts = Counter(column.lower() for columns in streams.values() for column in columns)
    names = {
        stream: [
            column if counts[column.lower()] == 1 else f"{stream}_{column}" for column in columns
        ]
        for stream, columns in streams.items()
    }
    owners: dict[str, str] = {}
    for stream, columns in streams.items():
        for column, name in zip(columns, names[stream], strict=True):
            here = f"{stream}.{column}"
            other = owners.setdefault(name.lower(), here)
            if other != here:
                raise InvalidArgumentError(
                    f"columns {other} and {here} would both be called {name!r} in the result; "
                    "rename one of them before the join"
                )
    return names


def _check_streams(streams: Mapping[str, pa.Schema]) -> None:
    if len(streams) < 2:
        raise InvalidArgumentError(
            f"a join needs at least two streams, given: {', '.join(streams) or 'none'}"
        )
    folded = Counter(name.lower() for name in streams)
    for name, schema in streams.items():
        if not name:
            raise InvalidArgumentError("a stream's name is empty; name each stream, as in 'cu'")
        if folded[name.lower()] > 1:
            raise InvalidArgumentError(
                f"several streams are called {name!r} (case does not count); rename one"
            )
        twice = [c for c, n in Counter(c.lower() for c in schema.names).items() if n > 1]
        if twice:
            raise InvalidArgumentError(
                f"stream {name!r} has several columns called {twice[0]!r}; rename all but one"
            )


def _keys_of_lists(
    streams: Mapping[str, pa.Schema], on: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    columns: dict[str, Sequence[str]] = {}
    for given, names in on.items():
        if isinstance(names, str):
            raise InvalidArgumentError(
                f"on[{given!r}]={names!r} is text; write a list of columns, as in [{names!r}]"
            )
        columns[_resolved("stream", given, streams)] = names
    missing = [name for name in streams if name not in columns]
    if missing:
        raise InvalidArgumentError(
            f"on: stream {missing[0]!r} has no key columns; list them for every stream"
        )
    lengths = {name: len(columns[name]) for name in streams}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        listed = ", ".join(f"{name} has {n}" for name, n in lengths.items())
        raise InvalidArgumentError(
            f"on: every stream needs the same number of key columns, at least one; {listed}"
        )
    keys = {
        name: [_resolved("column", c, streams[name].names, name) for c in columns[name]]
        for name in streams
    }
    for name, found in keys.items():
        twice = [column for column, n in Counter(found).items() if n > 1]
        if twice:
            raise InvalidArgumentError(
                f"on: column {name}.{twice[0]} stands twice in the key; write it once, and filter "
                "the other inputs for equal columns before the join"
            )
    return keys


def _keys_of_condition(streams: Mapping[str, pa.Schema], text: str) -> dict[str, list[str]]:
    """Union-find over the equalities; each class must hold exactly one column of every stream."""
    parent: dict[Column, Column] = {}

    def root(column: Column) -> Column:
        parent.setdefault(column, column)
        while parent[column] != column:
            parent[column] = parent[parent[column]]
            column = parent[column]
        return column

    for pair in parse_condition(text):
        left, right = (_resolved_column(streams, column) for column in pair)
        # The earlier root wins, so that classes keep the order of the text.
        parent[root(right)] = root(left)
    classes: dict[Column, list[Column]] = {}
    for column in list(parent):
        classes.setdefault(root(column), []).append(column)
    for members in classes.values():
        _check_class(streams, members)
    return {
        name: [c.name for members in classes.values() for c in members if c.stream == name]
        for name in streams
    }


def _check_class(streams: Mapping[str, pa.Schema], members: Sequence[Column]) -> None:
    listed = " = ".join(f"{column.stream}.{column.name}" for column in members)
    counts = Counter(column.stream for column in members)
    for name in streams:
        if counts[name] > 1:
            raise InvalidArgumentError(
                f"join condition: {listed} equates several columns of stream {name!r}; filter "
                f"{name!r} for their equality before the join and name one of them here"
            )
        if counts[name] == 0:
            raise InvalidArgumentError(
                f"join condition: stream {name!r} is not connected to {listed}; all streams "
                f"share one common key: equate a column of {name!r} with these too"
            )


def _resolved_column(streams: Mapping[str, pa.Schema], column: Column) -> Column:
    stream = _resolved("stream", column.stream, streams)
    return Column(stream, _resolved("column", column.name, streams[stream].names, stream))


def _resolved(what: str, name: str, known: Iterable[str], stream: str = "") -> str:
    """The known name that equals ``name``, without regard to case, as Spark resolves."""
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise _unknown(what, name, known, stream)


def _unknown(what: str, name: str, known: Iterable[str], stream: str = "") -> InvalidArgumentError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    owner = f" in stream {stream!r}" if stream else ""
    return InvalidArgumentError(
        f"there is no {what} {name!r}{owner}; did you mean {near[0]!r}? Known: {', '.join(known)}"
    )
