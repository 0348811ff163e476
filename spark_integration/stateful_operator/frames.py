"""Frames: the rows that cross Spark's stateful operator, packed as Arrow IPC record batches.

- One row of Spark is one frame of about 64 to 256 KiB. A very large row is a frame of its own.
- So pandas, which Spark puts in between, never sees a cell of user data, and every type survives.
- Invariant: the frames of a bucket are processed in the order (stream, role, partition, number).
  Rows that are stored elsewhere come last. That does not depend on the order in which Spark
  delivers them, so a repeated micro-batch gives the same rows.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T

from lsmstate.errors import CorruptionError
from lsmstate.joins.protocols import Role
from lsmstate.options import KIB, MIB
from lsmstate.process.whole_writes import write_at
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes

if TYPE_CHECKING:
    import pandas as pd

_FRAME_SCHEMA: Final = pa.schema(
    [
        ("bucket", pa.int64()),
        ("stream", pa.int32()),
        ("role", pa.int8()),
        ("partition", pa.int32()),
        ("number", pa.int64()),
        ("rows", pa.int32()),
        ("payload", pa.binary()),
    ]
)
#: The same in Spark. A type needs no parser, where DDL starts that of SQL.
FRAME_TYPE: Final = (
    T.StructType()
    .add("bucket", T.LongType())
    .add("stream", T.IntegerType())
    .add("role", T.ByteType())
    .add("partition", T.IntegerType())
    .add("number", T.LongType())
    .add("rows", T.IntegerType())
    .add("payload", T.BinaryType())
)
FRAME_BYTES: Final = 128 * KIB
#: A frame grows to at most this, except for a single row that is larger.
_LARGEST_FRAME_BYTES: Final = 256 * KIB
#: Frames that are handed to Spark in one piece, and rows that wait for their frame to fill.
_HANDOVER_BYTES: Final = 1 * MIB
_WAITING_BYTES: Final = 8 * MIB


class FramePacker:
    """Cuts the rows of one route task into frames, one bucket at a time.

    Memory: rows that wait stay under ``_WAITING_BYTES`` however many buckets there are.
    """

    def __init__(self, stream: int, partition: int, role: Role = Role.STORE) -> None:
        """``role``: what the rows do in their buckets."""
        self._stream = stream
        self._role = role
        self._partition = partition
        self._number = 0
        self._waiting: dict[int, list[pa.RecordBatch]] = {}
        self._waiting_bytes: dict[int, int] = {}
        self._frames: list[tuple[int, int, int, bytes]] = []
        self._frame_bytes = 0

    def add(
        self, batch: pa.RecordBatch, buckets: npt.NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        """Add rows. Row ``i`` belongs to bucket ``buckets[i]``; a negative number means none."""
        for bucket in np.unique(buckets[buckets >= 0]).tolist():
            # A copy, not a slice: a slice would keep the whole batch alive until it is packed.
            rows = batch.take(pa.array(np.flatnonzero(buckets == bucket)))
            self._waiting.setdefault(bucket, []).append(rows)
            waiting = self._waiting_bytes.get(bucket, 0) + rows.nbytes
            self._waiting_bytes[bucket] = waiting
            if waiting >= FRAME_BYTES:
                yield from self._pack(bucket)
        while sum(self._waiting_bytes.values()) > _WAITING_BYTES:
            fullest = max(self._waiting_bytes, key=lambda b: (self._waiting_bytes[b], -b))
            yield from self._pack(fullest)

    def call(self, buckets: Iterable[int]) -> None:
        """Add a frame without rows for each bucket, so that Spark calls it."""
        for bucket in buckets:
            self._frames.append((bucket, self._number, 0, b""))
            self._number += 1

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Pack everything that still waits."""
        for bucket in sorted(self._waiting):
            yield from self._pack(bucket)
        if self._frames:
            yield self._hand_over()

    def _pack(self, bucket: int) -> Iterator[pa.RecordBatch]:
        self._waiting_bytes.pop(bucket)
        rows = pa.concat_batches(self._waiting.pop(bucket))
        for piece in cut(rows, _LARGEST_FRAME_BYTES):
            payload = piece.serialize().to_pybytes()
            self._frames.append((bucket, self._number, piece.num_rows, payload))
            self._number += 1
            self._frame_bytes += len(payload)
            if self._frame_bytes >= _HANDOVER_BYTES:
                yield self._hand_over()

    def _hand_over(self) -> pa.RecordBatch:
        buckets, numbers, rows, payloads = zip(*self._frames, strict=True)
        count = len(buckets)
        self._frames, self._frame_bytes = [], 0
        columns = [
            buckets,
            [self._stream] * count,
            [self._role] * count,
            [self._partition] * count,
            numbers,
            rows,
            payloads,
        ]
        return pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, _FRAME_SCHEMA, strict=True)],
            schema=_FRAME_SCHEMA,
        )


def cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slices of at most ``max_bytes``, in row order. A single larger row is a slice of its own."""
    for part in pieces_of(row_sizes(batch), max_bytes):
        yield batch.slice(part.start, part.stop - part.start)


class Source(NamedTuple):
    """The origin of the rows of a frame."""

    stream: int
    role: Role


def joined(
    frames: Iterable[tuple[Source, pa.RecordBatch]], least_bytes: int
) -> Iterator[tuple[Source, pa.RecordBatch]]:
    """The same rows in fewer batches: neighbours of one source are joined until they have
    ``least_bytes``. Fixed work per batch then weighs less, and probes walk more keys at once."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes, current = 0, None
    for source, batch in frames:
        if current is not None and (source != current or waiting_bytes >= least_bytes):
            yield current, pa.concat_batches(waiting)
            waiting, waiting_bytes = [], 0
        current = source
        waiting.append(batch)
        waiting_bytes += batch.nbytes
    if current is not None:
        yield current, pa.concat_batches(waiting)


class _Place(NamedTuple):
    source: Source
    partition: int
    number: int
    rows: int
    offset: int
    length: int


class FrameSpool:
    """Collects the frames of one bucket and micro-batch, spills many, and returns them in order.

    Payloads stay in memory up to ``memory_bytes``. Beyond that all of them lie in one unnamed file
    in ``directory``, which vanishes with the process in any case. The index of places, about 100
    bytes per frame, stays in memory.
    """

    def __init__(self, directory: str, memory_bytes: int) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._held: dict[int, bytes] = {}
        self._places: list[_Place] = []
        self._end = 0
        self._file: IO[bytes] | None = None
        self.spilled_bytes = 0

    def add(self, frames: "pd.DataFrame") -> None:
        """Add the frames of one of the pieces that Spark delivers."""
        columns = [frames[name].tolist() for name in _FRAME_SCHEMA.names[1:]]
        for stream, role, partition, number, rows, payload in zip(*columns, strict=True):
            if not rows:
                continue
            source = Source(stream, Role(role))
            place = _Place(source, partition, number, rows, self._end, len(payload))
            self._places.append(place)
            self._end += len(payload)
            if self._file is None:
                self._held[place.offset] = payload
                if self._end > self._memory_bytes:
                    self._spill()
            else:
                self._write(payload, place.offset)

    def in_order(self, schemas: list[pa.Schema]) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """(source, rows) of every frame in the fixed order. Each payload is read once."""
        for place in sorted(self._places):
            payload = self._held.pop(place.offset, None)
            if payload is None:
                payload = self._read(place)
            yield place.source, unpack_rows(payload, place.rows, schemas[place.source.stream])

    def close(self) -> None:
        """Free the memory and the file. A second call does nothing."""
        self._held.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        # Without a name from the start where the system can (O_TMPFILE): kill -9 leaves none.
        self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
        for offset, payload in self._held.items():
            self._write(payload, offset)
        self._held.clear()

    def _write(self, payload: bytes, offset: int) -> None:
        assert self._file is not None
        write_at(self._file.fileno(), payload, offset)
        self.spilled_bytes += len(payload)

    def _read(self, place: _Place) -> bytes:
        assert self._file is not None
        parts, offset, end = [], place.offset, place.offset + place.length
        while offset < end:
            part = os.pread(self._file.fileno(), end - offset, offset)
            if not part:
                raise CorruptionError("a spilled frame is cut short; restart the query")
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


def unpack_rows(payload: bytes | pa.Buffer, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of a frame; its buffers stay views of ``payload``."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
    if batch.num_rows != rows:
        raise CorruptionError(
            f"a frame of {rows} rows holds {batch.num_rows} rows; restart the query"
        )
    return batch
