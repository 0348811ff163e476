"""Joins of two streams by any condition, of any type and of changelogs: what comes, and what goes.

A batch changes the rows of one stream. Its pairs with rows of the other stream come or go. A row of
the other stream changes sides where it gets its first partner, or loses the last one. Such rows are
found by two looks: into the other stream, for rows that match one of the batch; from there back
into the changed stream, for another partner. So no counts are kept, and what is found follows from
the stored rows alone. The look for a partner before the batch is made before the batch is stored.
What it finds is one bit for each row that matches, and the rows are read again when the results
are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, ChangeInput
from lsmstate.joins.local.parts.bound_rows import coalesced
from lsmstate.joins.local.parts.changelog import ADDED, REMOVED, WRITES, Changes
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.write_parts import WriteParts
from lsmstate.joins.local.theta.finder import CANDIDATES, Finder, bound_rows, size_of
from lsmstate.joins.local.theta.result_count import ResultCount
from lsmstate.joins.local.theta.results import SideResults
from lsmstate.joins.local.theta.step_ranges import key_values
from lsmstate.joins.local.theta.stored_rows import Mask, StoredRows, check_streams_of
from lsmstate.joins.protocols import Batch, Context, check_is_stored
from lsmstate.joins.specs.theta import ThetaIndex
from lsmstate.joins.specs.theta_sides import ThetaChangeSpec, rows_alone
from lsmstate.store import MultimapStore, Mutation
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

Parts = Sequence[pa.RecordBatch]


@dataclass(frozen=True)
class _Changed:
    """What a batch changed in its stream: rows by whether they come, in parts."""

    parts: Mapping[bool, Parts]
    alone: Mapping[bool, pa.RecordBatch]
    """Rows that match nothing, whatever comes."""
    gained: Sequence[npt.NDArray[np.uint8]]
    """Beside each part of what comes: of the rows that match it, in the order in which they are
    found, whether it brings them their first partner. One bit each."""


class ThetaChangeJoin(KeepsAllRows):
    """The local join of a ThetaChangeSpec. Not thread-safe. The store belongs to the caller, who
    commits and closes it."""

    def __init__(self, spec: ThetaChangeSpec, store: MultimapStore, context: Context) -> None:
        """InvalidArgumentError if the store lacks a stream, or ``piece_bytes`` is less than 1."""
        if context.piece_bytes < 1:
            raise InvalidArgumentError(f"piece_bytes={context.piece_bytes!r}: must be at least 1")
        check_streams_of(store, spec.stream_schemas)
        self._spec = spec
        self._sides = spec.sides
        self._store = store
        self._piece_bytes = context.piece_bytes
        theta = spec.sides.theta
        self._stored = StoredRows(theta, store)
        self._finder = Finder(theta, store, self._stored, context.piece_bytes)
        self._made = SideResults(spec.sides, context.piece_bytes)
        self._input = ChangeInput(
            *(store, spec.streams, spec.operations, self._keys),
            *(context.piece_bytes, context.unmatched),
        )
        self._most_results = context.most_results
        self._unfinished: Results | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """``candidates``: pairs that indexes picked so far; ``unmatched_retractions``: retractions
        left out so far."""
        return {
            CANDIDATES: self._finder.candidates,
            UNMATCHED_RETRACTIONS: self._input.unmatched_retractions,
        }

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return what it changes: first what goes, then what comes.

        A batch that is refused changes nothing.

        Args:
            batch: The rows, with the operation column if the stream is a changelog. Its rows count
                together, in whatever order they stand. With ``is_more_coming``, a retraction whose
                row is not there waits for the next batch of the stream.

        Returns:
            The changes in pieces of at most ``piece_bytes`` or one row, computed as they are read,
            with the columns ``spec.output_schema``. Read them to the end, or close them, before the
            next call.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, earlier results are not
                read, or a condition fails on a row.
            MemoryLimitError: More than 4 MiB of retractions wait.

        Cost:
            That of an inner join. Where rows of the other stream may change sides, the rows that
            match are read twice more, and for each of them one partner.
        """
        stream = batch.stream
        self._spec.check_stream(stream)
        check_is_stored(batch)
        check_finished(f"process({stream!r})", self._unfinished)
        with self._input.undone_if_refused():
            changes = self._input.arrived(stream, batch.rows)
            changed = self._arrived(stream, changes, batch.is_more_coming)
        self._unfinished = Results(self._results(stream, changed), schema=self._spec.output_schema)
        return self._unfinished

    def _keys(self, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        return key_values(self._sides.index_of(stream), rows)

    def _arrived(self, stream: str, changes: Changes, more: bool) -> _Changed:
        """Store the changes that can be made."""
        codec = KeyCodec(self._sides.index_of(stream).key_schema)
        matches = self._stored.passing(stream, changes.rows) & codec.encode(changes.keys).valid
        alone = changes.take(np.flatnonzero(~matches))
        if not matches.all():
            changes = changes.take(np.flatnonzero(matches))
        if not self._sides.shows_alone(stream):
            alone = alone.take(np.zeros(0, dtype=np.int64))
        if not changes.is_added.all() or not alone.is_added.all():
            index, present = self._sides.index_of(stream), self._input.present
            changes, lost = present(stream, changes, index.name, codec.encode(changes.keys))
            if len(alone):
                null_codec = KeyCodec(null_safe_schema(index.key_schema))
                keys = null_codec.encode(null_safe_keys(alone.keys))
                alone, also_lost = present(stream, alone, rows_alone(stream), keys)
                lost = lost.then(also_lost)
            self._input.settle(stream, lost, more=more)
        parts = {
            sign: self._stored.parts(stream, _signed(changes, sign), self._piece_bytes)
            for sign in (False, True)
        }
        gained = self._gained(stream, parts[True])
        changed = _Changed(parts, {sign: _signed(alone, sign) for sign in (False, True)}, gained)
        new = self._stored.new_lengths(stream, parts[True])
        self._store.write_all(WriteParts(lambda: self._writes(stream, changed, new)))
        self._stored.learned(new)
        return changed

    def _gained(self, stream: str, come: Parts) -> list[npt.NDArray[np.uint8]]:
        """Beside each part of what comes, for whom it is the first partner."""
        other = self._sides.other(stream)
        if other not in self._sides.counted:
            return []
        found, seen = [], _Seen(self._spec.streams[other], is_needed=len(come) > 1)
        for part in come:
            bits = [np.zeros(0, np.bool_)]
            for rows, is_matched in self._finder.partners(stream, part):
                here = rows.filter(pa.array(is_matched))
                is_first = ~self._finder.have_partners(other, here)
                is_first[is_first] = seen.are_new(here.filter(pa.array(is_first)))
                bits.append(is_first)
            seen.next_part()
            found.append(np.packbits(np.concatenate(bits)))
        return found

    def _writes(
        self, stream: str, changed: _Changed, new: dict[ThetaIndex, set[int]]
    ) -> Iterator[list[Mutation]]:
        """What makes the changes, first what goes, in parts of at most a piece."""
        lengths = self._stored.length_writes(new)
        if lengths:
            yield lengths
        for kind, sign in WRITES:
            for part in changed.parts[sign]:
                yield self._stored.writes(stream, part, kind)
            name = rows_alone(stream)
            if name in self._store.streams:  # else no changelog: nothing takes these rows back
                for part in self._stored.parts(stream, changed.alone[sign], self._piece_bytes):
                    keys = null_safe_keys(self._keys(stream, part))
                    yield [Mutation(kind, name, keys, part)]

    def _results(self, stream: str, changed: _Changed) -> Iterator[pa.RecordBatch]:
        for sign, operation in ((False, REMOVED), (True, ADDED)):
            pieces = chain(self._own(stream, changed, sign), self._turned(stream, changed, sign))
            for piece in coalesced(pieces, self._piece_bytes):
                if not self._spec.emits_changes:
                    assert sign, "nothing can be taken back of this join"
                    yield piece
                    continue
                columns = [pa.repeat(operation, piece.num_rows), *piece.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)

    def _own(self, stream: str, changed: _Changed, sign: bool) -> Iterator[pa.RecordBatch]:
        """Results with rows of the batch."""
        sides = self._sides
        yield from self._made.alone(stream, changed.alone[sign])
        rows = sum(part.num_rows for part in changed.parts[sign])
        count = ResultCount(stream, rows, self._most_results)
        for part in changed.parts[sign]:
            if sides.shows_pairs:
                has_partner = np.zeros(part.num_rows, np.bool_)
                (step,) = sides.theta.steps[stream]
                for pairs in self._finder.extended({stream: bound_rows(part)}, step):
                    has_partner[pairs[stream].at] = True
                    count.add(size_of(pairs))
                    yield from self._made.pairs(pairs)
            elif stream in sides.counted:
                has_partner = self._finder.have_partners(stream, part)
            if stream in sides.counted:
                is_shown = ~has_partner if sides.shows_alone(stream) else has_partner
                yield from self._made.alone(stream, part.filter(pa.array(is_shown)))

    def _turned(self, stream: str, changed: _Changed, sign: bool) -> Iterator[pa.RecordBatch]:
        """Results of rows of the other stream alone, which come or go since it changes whether
        they have a partner."""
        other = self._sides.other(stream)
        if other not in self._sides.counted:
            return
        if sign == self._sides.shows_alone(other):
            found = self._losing(stream, other, changed.parts[False])
        else:
            found = self._gaining(stream, changed)
        for rows in found:
            yield from self._made.alone(other, rows)

    def _gaining(self, stream: str, changed: _Changed) -> Iterator[pa.RecordBatch]:
        """Rows of the other stream that have got their first partner."""
        for part, packed in zip(changed.parts[True], changed.gained, strict=True):
            if not packed.any():
                continue
            bits, at = np.unpackbits(packed), 0
            for rows, is_matched in self._finder.partners(stream, part):
                places = np.flatnonzero(is_matched)
                is_first = bits[at : at + len(places)].astype(np.bool_)
                at += len(places)
                yield rows.take(pa.array(places[is_first]))

    def _losing(self, stream: str, other: str, gone: Parts) -> Iterator[pa.RecordBatch]:
        """Rows of the other stream that have lost their last partner."""
        seen = _Seen(self._spec.streams[other], is_needed=len(gone) > 1)
        for part in gone:
            for rows, is_matched in self._finder.partners(stream, part):
                here = rows.filter(pa.array(is_matched))
                here = here.filter(pa.array(~self._finder.have_partners(other, here)))
                yield here.filter(pa.array(seen.are_new(here)))
            seen.next_part()


class _Seen:
    """Rows that earlier parts of a batch have found: equal rows have the same partners. Memory: 16
    bytes a row."""

    def __init__(self, rows: pa.Schema, *, is_needed: bool) -> None:
        self._codec = RowCodec(rows) if is_needed else None
        self._earlier = np.zeros(0, _DIGEST)
        self._here: list[npt.NDArray[np.bytes_]] = []

    def are_new(self, rows: pa.RecordBatch) -> Mask:
        """Which rows no earlier part has found; they count as found by this one."""
        if self._codec is None or not rows.num_rows:
            return np.ones(rows.num_rows, np.bool_)
        encoded = self._codec.encode(rows).to_pylist()
        whole = b"".join(blake2b(each, digest_size=16).digest() for each in encoded)
        found = np.frombuffer(whole, _DIGEST)
        self._here.append(found)
        return ~np.isin(found, self._earlier)

    def next_part(self) -> None:
        """Begin the next part of the batch."""
        self._earlier = np.unique(np.concatenate([self._earlier, *self._here]))
        self._here = []


_DIGEST: Final = np.dtype("S16")


def _signed(changes: Changes, sign: bool) -> pa.RecordBatch:
    if changes.is_added.all() if sign else not changes.is_added.any():
        return changes.rows
    return changes.rows.filter(pa.array(changes.is_added == sign))
