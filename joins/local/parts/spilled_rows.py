"""Rows that wait until they are gone through: some in memory, those after them in a file."""

import tempfile
from collections.abc import Iterator
from typing import IO

import pyarrow as pa

#: Intermediate results kept back in memory at each node of a tree; more lie in a temporary file.
KEPT_BYTES = 4 << 20


class SpilledRows:
    """Batches in arrival order, of one schema. The temporary file goes with the object."""

    def __init__(self, most_bytes: int | None) -> None:
        """``most_bytes`` are kept in memory; None: all."""
        self._most_bytes = most_bytes
        self._rows: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.RecordBatch) -> bool:
        """Keep one batch more; none once they were gone through. Returns whether it is in
        memory."""
        self._bytes += rows.nbytes
        if self._most_bytes is None or self._bytes <= self._most_bytes:
            self._rows.append(rows)
            return True
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the object is
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        assert self._writer is not None, "no row is added once they were gone through"
        self._writer.write_batch(rows)
        return False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows
        if self._file is None:
            return
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as reader:
            yield from reader
