"""Changes as they arrive: netted, and without retractions of rows that are not there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cython_ext.key_codec import KeyBatch
from joins.changes import Changes, Mask, Numbers, ranks, row_codes, without_operation
from joins.row_equality import RowEquality
from joins.row_text import shown_row
from lsmstate.arrow_sizes import row_sizes
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.store import StateStore

UNMATCHED = ("count", "error")
#: Retractions that wait for their row may take this much.
_WAITING_BYTES = 4 << 20


class ChangeInput:
    """The streams of one join: ``streams`` as they are stored, ``operations`` of the changelogs,
    ``key_batch`` their keys. ``unmatched`` as in ChangeJoin."""

    def __init__(
        self,
        store: StateStore,
        streams: Mapping[str, pa.Schema],
        operations: Mapping[str, str],
        key_batch: Callable[[str, pa.RecordBatch], pa.RecordBatch],
        piece_bytes: int,
        unmatched: str,
    ) -> None:
        check_unmatched(unmatched)
        #: Retractions that were left out.
        self.unmatched_retractions = 0
        self._store = store
        self._operations = operations
        self._key_batch = key_batch
        self._piece_bytes = piece_bytes
        self._unmatched = unmatched
        self._equality = {name: RowEquality(streams[name]) for name in operations}
        self._waiting: dict[str, Changes] = {}

    def arrived(
        self, stream: str, batch: pa.RecordBatch, keys: pa.RecordBatch | None = None
    ) -> Changes:
        """The batch, with retractions that waited for it, and without what cancels out."""
        operation = self._operations.get(stream)
        is_added: Mask = np.ones(batch.num_rows, dtype=np.bool_)
        if operation is not None:
            batch, is_added = without_operation(batch, operation)
        if keys is None:
            keys = self._key_batch(stream, batch)
        if len(keys) != batch.num_rows:
            raise InvalidArgumentError(
                f"process({stream!r}): {batch.num_rows} rows but {len(keys)} keys; "
                "give one key per row"
            )
        changes = Changes(batch, keys, is_added)
        if stream in self._waiting:
            changes = self._waiting.pop(stream).then(changes)
        return changes.netted(self._equality[stream]) if operation is not None else changes

    def present(
        self, stream: str, changes: Changes, name: str, keys: KeyBatch
    ) -> tuple[Changes, Changes]:
        """The changes that can be made, and retractions of rows that the store's stream ``name``,
        whose ``keys`` are given, does not hold. A row that is taken back has the bits of the
        stored one: the oldest that equals it. Cost: the rows of the keys that lose some."""
        removed = np.flatnonzero(~changes.is_added)
        if len(removed) == 0:
            return changes, changes.take(removed)
        equality = self._equality[stream]
        codes, encoded = row_codes(changes.rows.take(pa.array(removed)), equality)
        wanted = np.bincount(codes, minlength=len(encoded))
        found = np.zeros(len(encoded), dtype=np.int64)
        taken = []
        distinct, _ = keys.take(removed).distinct()
        probe = self._store.probe(name, distinct)
        for piece in probe.fetch(np.flatnonzero(probe.counts), self._piece_bytes):
            stored = pc.index_in(equality.codes(piece.rows), value_set=encoded)
            places = np.flatnonzero(stored.is_valid())
            stored = stored.drop_null().to_numpy().astype(np.int64)
            if equality.inexact:
                is_taken = found[stored] + ranks(stored) < wanted[stored]
                rows = piece.rows.select(equality.inexact).take(pa.array(places[is_taken]))
                taken.append(TakenRows(rows, stored[is_taken]))
            found += np.bincount(stored, minlength=len(encoded))
        is_lost = ranks(codes) >= found[codes]
        lost = changes.take(removed[is_lost])
        if equality.inexact and taken:
            rows = _with_taken(changes.rows, removed[~is_lost], codes[~is_lost], taken)
            changes = replace(changes, rows=rows)
        if len(lost) == 0:
            return changes, lost
        return changes.take(np.setdiff1d(np.arange(len(changes)), removed[is_lost])), lost

    def settle(self, stream: str, lost: Changes, *, more: bool) -> None:
        """What becomes of retractions whose rows are not there; with ``more`` they wait."""
        if len(lost) == 0:
            return
        if more:
            size = int(row_sizes(lost.rows).sum())
            if size > _WAITING_BYTES:
                raise MemoryLimitError(
                    f"stream {stream!r}: {len(lost)} retractions ({size} bytes) stand before their "
                    "rows; order the changelog, or give it in smaller batches"
                )
            self._waiting[stream] = lost
        elif self._unmatched == "error":
            raise InvalidArgumentError(
                f"stream {stream!r}: {len(lost)} rows are taken back that are not there, such as "
                f"{shown_row(lost.rows, 0)!r}; correct the changelog, or say "
                "unmatched='count' to leave such retractions out"
            )
        else:
            self.unmatched_retractions += len(lost)


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Stored rows that are taken back, oldest first: the columns whose bits the retractions may
    have otherwise, and the codes of the rows."""

    columns: pa.RecordBatch
    codes: Numbers


def _with_taken(
    rows: pa.RecordBatch, removed: Numbers, codes: Numbers, taken: Sequence[TakenRows]
) -> pa.RecordBatch:
    """The rows, of which those at ``removed``, with these codes, get the bits of stored ones."""
    stored = np.concatenate([each.codes for each in taken])
    # The n-th of the removed rows with a code is the n-th stored one of that code.
    places = np.arange(rows.num_rows)
    by_code, stored_by_code = (np.argsort(each, kind="stable") for each in (codes, stored))
    places[removed[by_code]] = rows.num_rows + stored_by_code
    for name in taken[0].columns.schema.names:
        at = rows.schema.get_field_index(name)
        column = pa.concat_arrays([rows.column(at), *(each.columns.column(name) for each in taken)])
        rows = rows.set_column(at, rows.schema.field(at), column.take(pa.array(places)))
    return rows


def check_unmatched(value: str) -> None:
    """InvalidArgumentError for what is no way to treat retractions of rows that are not there."""
    if value not in UNMATCHED:
        raise InvalidArgumentError(f"unmatched={value!r} is unknown; known: {', '.join(UNMATCHED)}")
