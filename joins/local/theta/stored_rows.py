"""The rows of a join by any condition in its store: which of them can match, and how they lie in
the indexes of their stream."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.columns import Column
from lsmstate.joins.local.parts.bound_rows import parts_of
from lsmstate.joins.local.theta.kept_rows import KeptRows
from lsmstate.joins.local.theta.lengths import length_classes
from lsmstate.joins.local.theta.step_ranges import key_values
from lsmstate.joins.specs.theta import LENGTHS, ThetaIndex, ThetaSpec
from lsmstate.store import MultimapStore, Mutation, StreamSchema

Mask = npt.NDArray[np.bool_]


class StoredRows:
    """Rows of a ThetaSpec in ``store``, under the names that the spec gives its indexes."""

    def __init__(self, spec: ThetaSpec, store: MultimapStore, kept: KeptRows | None = None) -> None:
        """``kept``: rows that are in memory too, if none is ever taken back."""
        self._spec = spec
        self._store = store
        self._kept = kept
        #: By index of intervals the length classes in use; read when they are first asked for.
        self._lengths: dict[ThetaIndex, set[int]] = {}

    def passing(self, stream: str, rows: pa.RecordBatch) -> Mask:
        """Which rows the conditions on their stream alone hold for."""
        found = np.ones(rows.num_rows, np.bool_)
        for condition in self._spec.filters(stream):
            places = np.flatnonzero(found)
            if not len(places):
                break
            some = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
            found[places] = condition.holds(partial(own_column, some))
        return found

    def parts(
        self, stream: str, rows: pa.RecordBatch, piece_bytes: int, more_copies: int = 0
    ) -> list[pa.RecordBatch]:
        """The rows in parts that are half a piece at most, together with their copies: one in each
        index of the stream, and ``more_copies``. So one write holds them under the least cap."""
        copies = max(1, len(self._spec.indexes_of(stream)) + more_copies)
        return parts_of(rows, max(1, piece_bytes // (2 * copies)))

    def lengths_of(self, index: ThetaIndex) -> set[int]:
        """The length classes in use."""
        if index not in self._lengths:
            pieces = self._store.scan(index.lengths_name)
            self._lengths[index] = {n for piece in pieces for n in piece.column(0).to_pylist()}
        return self._lengths[index]

    def new_lengths(
        self, stream: str, parts: Iterable[pa.RecordBatch]
    ) -> dict[ThetaIndex, set[int]]:
        """The length classes that rows bring to the indexes of their stream."""
        new: dict[ThetaIndex, set[int]] = {}
        for index in self._spec.indexes_of(stream):
            if index.high is not None:
                found = (length_classes(*_ends(index, part)) for part in parts)
                new[index] = {int(n) for each in found for n in np.unique(each)}
                new[index] -= self.lengths_of(index)
        return new

    def length_writes(self, new: dict[ThetaIndex, set[int]]) -> list[Mutation]:
        """What stores them. Call ``learned`` when that is done."""
        return [
            Mutation("append", index.lengths_name, listed, listed)
            for index, classes in new.items()
            if classes
            for listed in [pa.record_batch([pa.array(sorted(classes), pa.int16())], schema=LENGTHS)]
        ]

    def learned(self, new: dict[ThetaIndex, set[int]]) -> None:
        """Note length classes that are stored now."""
        for index, classes in new.items():
            self._lengths[index] |= classes

    def written(
        self, stream: str, parts: Iterable[pa.RecordBatch], new: dict[ThetaIndex, set[int]]
    ) -> None:
        """Note rows that are stored now, with the classes that they bring."""
        self.learned(new)
        if self._kept is not None:
            self._kept.written(stream, parts)

    def give_back(self) -> bool:
        """Let go of rows in memory; return whether there were any."""
        return self._kept is not None and self._kept.give_back()

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        if self._kept is not None:
            self._kept.close()

    def writes(
        self, stream: str, part: pa.RecordBatch, kind: Literal["append", "retract"] = "append"
    ) -> list[Mutation]:
        """What stores rows in all indexes of their stream, or takes them back."""
        return [
            Mutation(kind, index.name, key_values(index, part), part)
            for index in self._spec.indexes_of(stream)
        ]

    def all_writes(
        self, stream: str, parts: Iterable[pa.RecordBatch], new: dict[ThetaIndex, set[int]]
    ) -> Iterator[list[Mutation]]:
        """What stores rows, part by part, each as one; the classes first."""
        lengths = self.length_writes(new)
        if lengths:
            yield lengths
        for part in parts:
            yield self.writes(stream, part)


def check_streams_of(store: MultimapStore, wanted: Sequence[StreamSchema]) -> None:
    """InvalidArgumentError if the store lacks a stream."""
    names = [schema.name for schema in wanted]
    if not store.streams.keys() >= set(names):
        raise InvalidArgumentError(
            f"the store holds the streams {', '.join(store.streams)}, the join needs "
            f"{', '.join(names)}; open the store with spec.stream_schemas"
        )


def own_column(rows: pa.RecordBatch, column: Column) -> pa.Array:
    """A column of rows of its own stream."""
    return rows.column(column.name)


def _ends(index: ThetaIndex, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    assert index.low is not None
    assert index.high is not None
    values = partial(own_column, rows)
    return index.low.values(values, rows.num_rows), index.high.values(values, rows.num_rows)
