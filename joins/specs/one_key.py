"""JoinSpec: named streams, their columns, and the one key that they share.

A key may have several columns. A *key class* is one column of every stream; its columns are equal
in each result. ``output_names`` names the columns of the result.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_classes import (
    check_differences,
    class_type,
    key_classes,
    written_pairs,
)
from lsmstate.joins.conditions.key_types import cast_key, common_key_type
from lsmstate.joins.conditions.names import resolved, unknown
from lsmstate.joins.specs.described import described
from lsmstate.store import StreamSchema

__all__ = ["Condition", "JoinSpec", "common_key_type", "output_names"]

#: SQL text, or the key columns of each stream, or the key columns all streams share by name.
Condition = str | Mapping[str, Sequence[str]] | Sequence[str]


@dataclass(frozen=True)
class JoinSpec:
    """Streams joined by one common key; made by ``JoinSpec.create``.

    Two ways of writing one condition give one spec, because key classes stand in the order of the
    first stream's columns.

    Attributes:
        streams: Columns of each stream.
        keys: Key columns of each stream. The n-th ones of all streams are equal in a result.
        compared_as: The types in which keys are compared, if the caller casts them. None: the
            common types of the columns.
    """

    streams: Mapping[str, pa.Schema]
    keys: Mapping[str, tuple[str, ...]]
    compared_as: pa.Schema | None = None
    event_time: ClassVar[None] = None
    graph: ClassVar[None] = None
    """What joins by several keys have."""

    @classmethod
    def create(cls, streams: Mapping[str, pa.Schema], on: Condition) -> "JoinSpec":
        """Check the streams and the condition, and make the spec.

        Args:
            streams: Columns of the streams by name.
            on: SQL equalities joined by AND, the key columns of each stream, or the key columns
                that all streams have.

        Returns:
            The spec.

        Raises:
            InvalidArgumentError: A stream, column or type does not fit.
        """
        check_streams(streams)
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
        written = written_pairs(streams, on) if isinstance(on, str) else None
        for k in range(len(order)):
            check_differences(streams, spec._columns(k), written)
        assert len(spec.output_schema) == sum(len(schema) for schema in streams.values())
        return spec

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Types in which the key columns are compared, under the names k0, k1, and so on."""
        if self.compared_as is not None:
            return self.compared_as
        fields = []
        for k in range(len(next(iter(self.keys.values())))):
            fields.append(pa.field(f"k{k}", class_type(self.streams, self._columns(k))))
        return pa.schema(fields)

    @property
    def key_columns(self) -> tuple[Mapping[str, str], ...]:
        """Columns that are equal in a result, by their streams."""
        return tuple(self._columns(k) for k in range(len(self.key_schema)))

    @property
    def shown_rows(self) -> Mapping[str, pa.Schema]:
        """The columns of each stream that are part of a result."""
        return self.streams

    def _columns(self, k: int) -> dict[str, str]:
        """The k-th key column of each stream."""
        return {name: self.keys[name][k] for name in self.streams}

    @cached_property
    def output_schema(self) -> pa.Schema:
        """All columns of all streams, in the order of the streams."""
        return joined_schema(self.streams)

    @cached_property
    def stream_schemas(self) -> tuple[StreamSchema, ...]:
        """The streams to open a store with."""
        return tuple(
            StreamSchema(name, self.key_schema, schema) for name, schema in self.streams.items()
        )

    @property
    def owners(self) -> Mapping[str, str]:
        """By stream of the store, the input whose rows it holds."""
        return {name: name for name in self.streams}

    def key_batch(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The key of each row of a batch, in the common types."""
        columns = [
            cast_key(batch.column(name), field.type)
            for name, field in zip(self.keys[stream], self.key_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.key_schema)

    def computed(self, stream: str) -> Sequence[str]:
        """The key of each row."""
        return tuple(self.key_schema.names)

    def equal_columns(self) -> list[list[str]]:
        """The columns of each key, as ``stream.column``."""
        count = len(self.key_schema)
        return [[f"{name}.{c[k]}" for name, c in self.keys.items()] for k in range(count)]

    def described(self) -> dict[str, Any]:
        """What is compared with a kept state."""
        return described(self.equal_columns())

    def check_stream(self, stream: str) -> None:
        """InvalidArgumentError, with the nearest name, if there is no such stream."""
        if stream not in self.streams:
            raise unknown("stream", stream, self.streams)


def output_names(streams: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Name the columns of the result.

    A column keeps its name if no other input has it. Otherwise it is called ``<stream>_<column>``.
    Case does not count, in the way of Spark: lower case, so ``straße`` is not ``strasse``.

    Args:
        streams: Column names of each stream.

    Returns:
        For each stream, the names of its columns in the result.

    Raises:
        InvalidArgumentError: Two columns would have one name.

    Example:
        ```python
        output_names({"o": ["id", "day"], "p": ["order_id", "day"]})
        # {"o": ["id", "o_day"], "p": ["order_id", "p_day"]}
        ```
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


def joined_schema(streams: Mapping[str, pa.Schema]) -> pa.Schema:
    """All columns of all streams in their order, under their names in the result."""
    names = output_names({name: schema.names for name, schema in streams.items()})
    return pa.schema(
        field.with_name(name)
        for stream, schema in streams.items()
        for field, name in zip(schema, names[stream], strict=True)
    )


def check_streams(streams: Mapping[str, pa.Schema]) -> None:
    if not isinstance(streams, Mapping):
        raise InvalidArgumentError(
            f"streams={streams!r} is a {type(streams).__name__}; give the schema of each stream by "
            'its name, as in {"a": schema, "b": schema}'
        )
    for given, schema in streams.items():
        if not isinstance(given, str) or not isinstance(schema, pa.Schema):
            raise InvalidArgumentError(
                f"streams[{given!r}] is a {type(schema).__name__}; give a pyarrow.Schema under a "
                "name that is text"
            )
        if not len(schema):
            raise InvalidArgumentError(
                f"stream {given!r} has no columns; give it at least the column that it is joined by"
            )
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
        if not isinstance(names, Iterable):
            raise InvalidArgumentError(
                f"on[{given!r}]={names!r} is a {type(names).__name__}; write a list of columns"
            )
        columns[resolved("stream", given, streams)] = list(names)
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
        name: [resolved("column", c, streams[name].names, name) for c in columns[name]]
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
    """Each class of equal columns must hold one of every stream."""
    classes = key_classes(streams, text)
    for members in classes:
        _check_common(streams, members)
    return {
        name: [c.name for members in classes for c in members if c.stream == name]
        for name in streams
    }


def _check_common(streams: Mapping[str, pa.Schema], members: Sequence[Column]) -> None:
    listed = " = ".join(f"{column.stream}.{column.name}" for column in members)
    for name in streams:
        if all(column.stream != name for column in members):
            raise InvalidArgumentError(
                f"join condition: stream {name!r} is not connected to {listed}; all streams "
                f"share one common key: equate a column of {name!r} with these too"
            )
