"""Combinations of rows that joins of other types than inner grow, and which of them keep a step's
intervals."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joins.condition import Column
from joins.local.bound_rows import BoundRows
from joins.local.picked import Numbers
from joins.rooted_joins import Step
from joins.time_checks import holds
from lsmstate.arrow_sizes import pieces_of, row_sizes

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


def keeps(step: Step, found: Found) -> npt.NDArray[np.bool_]:
    """Which combinations, of a row of the step's stream among others, keep all its bounds and
    conditions. Memory: some ``_COMPARED_BYTES``, or one combination's, however long the texts are
    that are compared."""
    kept = np.ones(len(found), dtype=np.bool_)
    for bound in step.bounds:
        kept &= holds(bound, found.column(bound.later), found.column(bound.earlier))
    for condition in step.conditions:
        for piece in pieces_of(_column_bytes(condition.columns, found), _COMPARED_BYTES):
            some = found if len(kept) == piece.stop - piece.start else found.take(piece)
            kept[piece] &= condition.holds(some.column)
    return kept


def _column_bytes(columns: Iterable[Column], found: Found) -> Numbers:
    """What the columns take of each combination when they are picked for it."""
    total = np.zeros(len(found), dtype=np.int64)
    for stream, name in columns:
        rows = found.bound[stream]
        total += row_sizes(rows.rows.select([name]))[rows.at]
    return total
