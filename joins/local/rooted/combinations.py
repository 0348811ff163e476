"""Combinations of rows that joins of other types than inner grow, and which of them keep a step's
intervals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.conditions.key_types import cast_key
from lsmstate.joins.local.parts.bound_rows import BoundRows, grouped
from lsmstate.joins.local.parts.row_picks import Numbers
from lsmstate.joins.local.parts.time_checks import holds
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.rooted_steps import Step, StepKey
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes

#: Of columns that conditions compare, what is picked for some combinations at once.
_COMPARED_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """Combinations: one row of each bound stream, which is one of nulls in a left join without a
    partner; a value."""

    bound: Mapping[str, BoundRows]
    has_nulls: bool = False
    """Whether a stream has rows of nulls, in all of the combinations."""

    def __len__(self) -> int:
        return len(next(iter(self.bound.values())).at)

    def take(self, places: Numbers | slice) -> "Found":
        bound = {name: replace(rows, at=rows.at[places]) for name, rows in self.bound.items()}
        return replace(self, bound=bound)

    def column(self, column: Column) -> pa.Array:
        rows = self.bound[column.stream]
        return rows.rows.column(column.name).take(pa.array(rows.at))

    def joined(self, stream: str, rows: BoundRows) -> "Found":
        return replace(self, bound={**self.bound, stream: rows})

    def without(self, stream: str, schema: pa.Schema) -> "Found":
        nulls = pa.RecordBatch.from_arrays(
            [pa.nulls(1, kind) for kind in schema.types],
            schema=pa.schema([field.with_nullable(True) for field in schema]),
        )
        rows = BoundRows(nulls, row_sizes(nulls), np.zeros(len(self), dtype=np.int64))
        return Found({**self.bound, stream: rows}, has_nulls=True)


def key_values(graph: GraphSpec, found: Found, holders: Mapping[int, str]) -> pa.RecordBatch:
    """The values of key classes, ascending, each of the stream that is named beside it."""
    columns = []
    for number in sorted(holders):
        key_class, holder = graph.classes[number], holders[number]
        column = found.column(Column(holder, key_class.columns[holder]))
        columns.append(cast_key(column, key_class.type))
    return pa.RecordBatch.from_arrays(columns, schema=graph.key_schema(sorted(holders)))


def keeps(
    graph: GraphSpec, step: Step, found: Found, keys: Sequence[StepKey]
) -> npt.NDArray[np.bool_]:
    """Which combinations, of a row of the step's stream among others, keep all its bounds and
    conditions, and have equal ``keys``. Memory: some ``_COMPARED_BYTES``, or one combination's,
    however long the texts are that are compared."""
    kept = np.ones(len(found), dtype=np.bool_)
    for bound in step.bounds:
        kept &= holds(bound, found.column(bound.later), found.column(bound.earlier))
    for condition in step.conditions:
        # Judged on what keeps those before it, as AND says.
        left = np.flatnonzero(kept)
        rest = found if len(left) == len(kept) else found.take(left)
        named = [column for column in condition.columns if column.stream in found.bound]
        for piece in pieces_of(_column_bytes(named, rest), _COMPARED_BYTES):
            some = rest if len(left) == piece.stop - piece.start else rest.take(piece)
            kept[left[piece]] = condition.holds(partial(_column_or_nulls, graph, some))
    for key in keys:
        kept &= _are_equal(graph, step.stream, key, found)
    return kept


def parts_by(graph: GraphSpec, found: Found, holders: Mapping[int, str]) -> Iterator[Found]:
    """The combinations in parts whose keys take some ``_COMPARED_BYTES``, or one's."""
    columns = [Column(name, graph.classes[n].columns[name]) for n, name in holders.items()]
    for piece in pieces_of(_column_bytes(columns, found), _COMPARED_BYTES):
        yield found if len(found) == piece.stop - piece.start else found.take(piece)


def _column_or_nulls(graph: GraphSpec, found: Found, column: Column) -> pa.Array:
    if column.stream in found.bound:
        return found.column(column)
    return pa.nulls(len(found), graph.streams[column.stream].field(column.name).type)


def _are_equal(graph: GraphSpec, stream: str, key: StepKey, found: Found) -> npt.NDArray[np.bool_]:
    """Each row's value is copied once, in however many combinations it is."""
    key_class = graph.classes[key.key_class]
    columns, places = [], []
    for name in (stream, key.earlier):
        rows = found.bound[name]
        once, at = np.unique(rows.at, return_inverse=True)
        column = rows.rows.column(key_class.columns[name]).take(pa.array(once))
        columns.append(cast_key(column, key_class.type))
        places.append(at)
    schema = graph.key_schema([key.key_class])
    values = [pa.RecordBatch.from_arrays([column], schema=schema) for column in columns]
    _, groups = grouped(KeyCodec(schema).encode(pa.concat_batches(values)))
    own, earlier = groups[places[0]], groups[len(columns[0]) + places[1]]
    equal: npt.NDArray[np.bool_] = (own == earlier) & (own >= 0)
    return equal


def _column_bytes(columns: Iterable[Column], found: Found) -> Numbers:
    """What the columns take of each combination when they are picked for it."""
    total = np.zeros(len(found), dtype=np.int64)
    for stream, name in columns:
        rows = found.bound[stream]
        total += row_sizes(rows.rows.select([name]))[rows.at]
    return total
