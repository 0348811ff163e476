"""Frames of results, as they travel from the stateful node to unpack.

- A frame is an Arrow IPC record batch of results.
- If rows are in many results each, it instead has these rows and the places that each result picks:
  a mark, the lengths of what follows, a record batch of rows per stream, and one of places. unpack
  then makes the results, and a fraction of their bytes crosses the JVM.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.options import KIB, MIB
from lsmstate.schema.arrow_sizes import RowSizes
from lsmstate.spark_integration.columns.decimals import Unscaling
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.frames import cut, unpack_rows

#: Results of a frame or of a batch that leaves unpack, unless a single row is larger.
RESULT_BYTES: Final = 1 * MIB
#: An Arrow IPC message begins with four bytes of ones.
_MARK: Final = b"picked\0\0"
#: What a frame of rows and places has to spare: it describes the columns of every stream.
_LEAST_SAVED_BYTES: Final = 128 * KIB


class ResultFrame(NamedTuple):
    """Some of the results, as they travel."""

    rows: int
    payload: bytes


class ResultPacker:
    """Packs results in the worker that has the state."""

    def __init__(self, plan: StatefulPlan) -> None:
        self._gatherer = Gatherer(plan.parts, plan.output) if plan.parts else None

    def frames(self, results: Iterable[pa.RecordBatch | Picked]) -> Iterator[ResultFrame]:
        """The results in frames. Picks are sent as they are if that saves enough bytes. Otherwise
        their results are made, and small ones are sent together."""
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for found in results:
            if isinstance(found, pa.RecordBatch):
                yield from map(_rows_frame, cut(found, RESULT_BYTES))
                continue
            compact = found.compact()
            if _pays(compact):
                yield _picked_frame(compact)
                continue
            assert self._gatherer is not None, "the plan has parts where a function gives picks"
            for made in found.made(self._gatherer, RESULT_BYTES):
                made_bytes = made.nbytes
                if waiting and waiting_bytes + made_bytes > RESULT_BYTES:
                    yield _rows_frame(pa.concat_batches(waiting))
                    waiting, waiting_bytes = [], 0
                waiting.append(made)
                waiting_bytes += made_bytes
        if waiting:
            yield _rows_frame(pa.concat_batches(waiting))


class ResultUnpacker:
    """Makes the results of frames, as the inverse of ``ResultPacker``. Columns at the places
    ``integers``, decimals of at most 18 digits, are unscaled (see ``decimals``)."""

    def __init__(self, plan: StatefulPlan, integers: Collection[int] = ()) -> None:
        self._schema = plan.output
        self._parts = plan.parts
        self._unscale = Unscaling(plan.output, integers)
        self._unscale_parts = Unscaling.of_parts(plan.parts, integers)
        self._places = pa.schema([(str(number), pa.int32()) for number in range(len(plan.parts))])
        parts = [unscale.schema for unscale in self._unscale_parts]
        self._gatherer = Gatherer(parts, self._unscale.schema) if parts else None
        self._sizes = [RowSizes(part) for part in parts]

    def results(self, rows: int, payload: pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The results of a frame, in pieces. CorruptionError if they are not ``rows`` many."""
        found = self.found(rows, payload)
        if isinstance(found, Picked):
            assert self._gatherer is not None, "the plan has parts where a frame holds picks"
            yield from found.made(self._gatherer, RESULT_BYTES)
        else:
            yield found

    def found(self, rows: int, payload: pa.Buffer) -> pa.RecordBatch | Picked:
        """The results of a frame, or the picks that it holds. CorruptionError if they are not
        ``rows`` many."""
        if self._gatherer is None or payload.slice(0, len(_MARK)).to_pybytes() != _MARK:
            return self._unscale(unpack_rows(payload, rows, self._schema))
        lengths = struct.unpack_from(self._header, payload)[1:]
        starts = accumulate(lengths, initial=struct.calcsize(self._header))
        messages = [payload.slice(s, n) for s, n in zip(starts, lengths, strict=False)]
        places = unpack_rows(messages.pop(), rows, self._places)
        at = [column.to_numpy().astype(np.int64) for column in places.columns]
        batches = [
            unscale(pa.ipc.read_record_batch(message, part))
            for message, part, unscale in zip(
                messages, self._parts, self._unscale_parts, strict=True
            )
        ]
        widths = [
            size(batch)[place] for size, batch, place in zip(self._sizes, batches, at, strict=True)
        ]
        return Picked(batches, at, np.add.reduce(widths))

    @property
    def _header(self) -> str:
        return _header(len(self._parts))


def _pays(compact: Picked) -> bool:
    """Whether rows and places are that much smaller than the results."""
    places = 4 * len(compact.places) * len(compact)
    stored = places + sum(batch.nbytes for batch in compact.batches)
    return bool(stored + _LEAST_SAVED_BYTES <= compact.sizes.sum())


def _rows_frame(rows: pa.RecordBatch) -> ResultFrame:
    return ResultFrame(rows.num_rows, rows.serialize().to_pybytes())


def _picked_frame(picked: Picked) -> ResultFrame:
    places = pa.record_batch(
        [pa.array(place.astype(np.int32)) for place in picked.places],
        [str(number) for number in range(len(picked.places))],
    )
    messages = [batch.serialize() for batch in (*picked.batches, places)]
    head = struct.pack(_header(len(picked.batches)), _MARK, *(m.size for m in messages))
    return ResultFrame(len(picked), b"".join([head, *messages]))


def _header(parts: int) -> str:
    """The mark and the lengths of the record batches, that of the places last."""
    return f"<{len(_MARK)}s{parts + 1}q"
