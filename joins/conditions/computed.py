"""Keys that are no columns: nested fields, elements of maps, JSON paths, and text beside a number.

Each such side of an equality becomes a column of its stream, under a name that nobody else has. It
is computed as a row arrives, and no part of a result. Only what fails on no row may be a key, or
what Spark casts for its ``=`` anyway.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.evaluate import evaluated, type_beside_text, type_of
from lsmstate.joins.conditions.predicate import (
    Call,
    Cast,
    Constant,
    Element,
    Equal,
    Expression,
    Field,
    streams_of,
    text_of,
)


@dataclass(frozen=True)
class ComputedColumns:
    """Columns that are computed of others, by stream and name."""

    of: Mapping[str, Mapping[str, Expression]]

    @property
    def names(self) -> frozenset[str]:
        """Of all of them: each is of one stream."""
        return frozenset(name for own in self.of.values() for name in own)

    def schemas(self, streams: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
        """The columns of the streams with the computed ones behind. InvalidArgumentError for one
        that cannot be computed."""
        found = {}
        for name, schema in streams.items():
            for computed, expression in self.of.get(name, {}).items():
                schema = schema.append(pa.field(computed, type_of(expression, streams)))
            found[name] = schema
        return found

    def added(self, stream: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a stream with their computed columns behind. Cost: a pass a column."""
        for name, expression in self.of.get(stream, {}).items():
            found = evaluated(expression, partial(_own_column, batch), batch.num_rows)
            batch = batch.append_column(pa.field(name, found.type), found)
        return batch

    def dropped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without computed columns."""
        return batch.drop_columns([n for n in batch.schema.names if n in self.names])


@dataclass
class Computing:
    """Finds the sides of equalities that are to be computed, and names them."""

    columns: Mapping[str, Sequence[str]]
    streams: Mapping[str, pa.Schema] | None = None
    """Types of the columns; with them, text is compared with a number in the number's type."""
    found: dict[str, dict[str, Expression]] = field(default_factory=dict)

    def of(self, predicate: Expression) -> Expression:
        """The predicate, over computed columns if it equates what two streams have."""
        if not isinstance(predicate, Equal):
            return predicate
        left, right = predicate.left, predicate.right
        sides = streams_of(left), streams_of(right)
        if any(len(side) != 1 for side in sides) or sides[0] == sides[1]:
            return predicate
        if not (_is_path(left) and _is_path(right)):
            return predicate
        left, right = self._beside_text(left, right), self._beside_text(right, left)
        return Equal(self._column(left), self._column(right))

    def _beside_text(self, text: Expression, other: Expression) -> Expression:
        if self.streams is None:
            return text
        kinds = [type_of(side, self.streams) for side in (text, other)]
        if not pa.types.is_string(kinds[0]) or pa.types.is_string(kinds[1]):
            return text
        try:
            return Cast(text, type_beside_text(kinds[1]))
        except InvalidArgumentError:
            return text  # whoever compares the keys says so

    def _column(self, side: Expression) -> Column:
        if isinstance(side, Column):
            return side
        (stream,) = streams_of(side)
        own = self.found.setdefault(stream, {})
        for name, expression in own.items():
            if expression == side:
                return Column(stream, name)
        name = f"({text_of(side)})"
        taken = {c.lower() for known in self.columns.values() for c in known} | {*own}
        while name.lower() in taken:
            name += "_"
        own[name] = side
        return Column(stream, name)

    @property
    def known(self) -> dict[str, list[str]]:
        """The columns of the streams, with the computed ones."""
        return {name: [*known, *self.found.get(name, {})] for name, known in self.columns.items()}


def _own_column(batch: pa.RecordBatch, column: Column) -> pa.Array:
    return batch.column(column.name)


def _is_path(expression: Expression) -> bool:
    """Whether it is a column or a part of one, and has a value for every row."""
    match expression:
        case Column():
            return True
        case Field(of):
            return _is_path(of)
        case Element(of, Constant(str())):
            return _is_path(of)
        case Call("get_json_object", (of, Constant())):
            return _is_path(of)
    return False
