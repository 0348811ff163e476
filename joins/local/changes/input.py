"""Changes as they arrive: netted, and without retractions of rows that are not there."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyBatch
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.joins.local.changes.retracted_rows import TakenRows
from lsmstate.joins.local.parts.changelog import Changes, Mask, without_operation
from lsmstate.joins.local.parts.row_equality import RowEquality
from lsmstate.joins.local.parts.row_text import shown_row
from lsmstate.schema.arrow_sizes import row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import StateStore
from lsmstate.store_base.checks import nearest

UNMATCHED: Final = ("count", "error")
#: The counter of retractions that were left out.
UNMATCHED_RETRACTIONS: Final = "unmatched_retractions"
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
        self._streams = streams
        self._operations = operations
        self._key_batch = key_batch
        self._piece_bytes = piece_bytes
        self._unmatched = unmatched
        self._equality = {name: RowEquality(streams[name]) for name in operations}
        self._waiting: dict[str, Changes] = {}

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """Around the handling of a batch: one that is refused leaves neither counts nor retractions
        that wait otherwise than they were."""
        waiting, unmatched = dict(self._waiting), self.unmatched_retractions
        try:
            yield
        except BaseException:
            self._waiting, self.unmatched_retractions = waiting, unmatched
            raise

    def arrived(
        self, stream: str, batch: pa.RecordBatch, keys: pa.RecordBatch | None = None
    ) -> Changes:
        """The batch, with retractions that waited for it, and without identical rows that cancel
        out."""
        operation = self._operations.get(stream)
        is_added: Mask = np.ones(batch.num_rows, dtype=np.bool_)
        if operation is not None:
            batch, is_added = without_operation(batch, operation)
        batch = as_batch(batch, self._streams[stream], f"process({stream!r})")
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
        return changes.netted(self._equality[stream].bytes_of) if operation is not None else changes

    def present(
        self, stream: str, changes: Changes, name: str, keys: KeyBatch
    ) -> tuple[Changes, Changes]:
        """The changes that can be made, and retractions of rows that neither the store's stream
        ``name``, whose ``keys`` are given, holds nor the changes bring. A row that is taken back
        has the bits of the stored one (TakenRows). Cost: the rows of the keys that lose some."""
        removed = np.flatnonzero(~changes.is_added)
        if len(removed) == 0:
            return changes, changes.take(removed)
        equality = self._equality[stream]
        taken = TakenRows(changes.rows.take(pa.array(removed)), equality)
        distinct, _ = keys.take(removed).distinct()
        probe = self._store.probe(name, distinct)
        for piece in probe.fetch(np.flatnonzero(probe.counts), self._piece_bytes):
            taken.see(piece.rows)
        rows, none = taken.taken()
        goes = replace(changes.take(removed), rows=rows)
        lost = goes.take(none)
        goes = goes.take(np.setdiff1d(np.arange(len(goes)), none))
        come = changes.take(np.flatnonzero(changes.is_added))
        if len(lost) and equality.inexact:
            rest = lost.then(come).netted(equality.codes)
            lost, come = (rest.take(np.flatnonzero(rest.is_added == sign)) for sign in (0, 1))
        return goes.then(come), lost

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
                f"stream {stream!r}: {len(lost)} rows are retracted that are not stored, such as "
                f"{shown_row(lost.rows, 0)!r}; correct the changelog, or give unmatched='count' to "
                "leave such retractions out"
            )
        else:
            self.unmatched_retractions += len(lost)


def check_unmatched(value: str) -> None:
    """InvalidArgumentError for what is no way to treat retractions of rows that are not there."""
    if value not in UNMATCHED:
        raise InvalidArgumentError(f"unmatched={value!r} is unknown{nearest(value, UNMATCHED)}")
