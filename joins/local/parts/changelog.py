"""Changelogs: batches of rows that come (+I, +U) or are taken back (-U, -D), as Flink names them.

An update is a -U of the old row and a +U of the new one. What counts is the multiset of rows that
remain; ``row_equality.py`` says which rows are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.specs.changes import OPERATIONS

#: What a join calls its results that come, and those that are taken back.
ADDED: Final = "+I"
REMOVED: Final = "-D"

#: Kinds of writes, by whether their rows come: what goes is written first.
WRITES: Final[tuple[tuple[Literal["retract", "append"], bool], ...]] = (
    ("retract", False),
    ("append", True),
)

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows with their keys, and of each whether it comes or is taken back."""

    rows: pa.RecordBatch
    keys: pa.RecordBatch
    is_added: Mask

    def __len__(self) -> int:
        return len(self.is_added)

    def take(self, places: Numbers) -> "Changes":
        """Some of them."""
        at = pa.array(places)
        return Changes(self.rows.take(at), self.keys.take(at), self.is_added[places])

    def then(self, later: "Changes") -> "Changes":
        """Both, one after the other."""
        return Changes(
            pa.concat_batches([self.rows, later.rows]),
            pa.concat_batches([self.keys, later.keys]),
            np.concatenate([self.is_added, later.is_added]),
        )

    def netted(self, encode: Callable[[pa.RecordBatch], pa.Array]) -> "Changes":
        """Without the pairs of rows of which one comes and the other is taken back, in whatever
        order they stand; a pair has the same bytes by ``encode``."""
        if self.is_added.all() or not self.is_added.any():
            return self
        codes, _ = row_codes(encode(self.rows))
        added = np.bincount(codes[self.is_added], minlength=len(codes))
        removed = np.bincount(codes[~self.is_added], minlength=len(codes))
        keep = np.empty(len(codes), dtype=np.bool_)
        keep[self.is_added] = ranks(codes[self.is_added]) >= removed[codes[self.is_added]]
        keep[~self.is_added] = ranks(codes[~self.is_added]) >= added[codes[~self.is_added]]
        return self if keep.all() else self.take(np.flatnonzero(keep))


def without_operation(batch: pa.RecordBatch, column: str) -> tuple[pa.RecordBatch, Mask]:
    """The rows without their operation column, and of each whether it comes.
    InvalidArgumentError names an operation that is none."""
    place = batch.schema.get_field_index(column)
    operations = batch.column(place)
    known = pa.array(list(OPERATIONS), operations.type)
    at = pc.index_in(operations, value_set=known)
    if at.null_count:
        row = pc.index(at.is_null(), True).as_py()
        raise InvalidArgumentError(
            f"operation column {column!r}: {operations[row].as_py()!r} in row {row} of a batch is "
            f"none of {', '.join(OPERATIONS)}; translate the operations of the source before the "
            "join"
        )
    signs = np.array(list(OPERATIONS.values()), dtype=np.bool_)
    kept = [n for n in range(batch.num_columns) if n != place]
    return batch.select(kept), signs[at.to_numpy(zero_copy_only=False)]


def row_codes(rows: pa.Array) -> tuple[Numbers, pa.Array]:
    """A number for the bytes of each row, and by number the bytes."""
    encoded = rows.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary


def ranks(codes: Numbers) -> Numbers:
    """Of each code how many equal ones stand before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(is_first, np.arange(len(codes)), 0))
    found = np.empty(len(codes), dtype=np.int64)
    found[order] = np.arange(len(codes)) - starts
    return found
