"""What a probe of a RocksDB database found: the keys' entries, no rows."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lsmstate.rocks_chunks import chunks_of, unpack_entry
from lsmstate.store import Matches, Positions
from lsmstate.store_checks import Access, checked_positions

if TYPE_CHECKING:
    from lsmstate.rocks_reader import RocksReader


class RocksProbe:
    """A Probe; ``found`` are the entries of the keys at ``asked``."""

    def __init__(
        self,
        reader: "RocksReader",
        access: Access,
        stream: str,
        keys: int,
        asked: Positions,
        names: list[bytes],
        found: list[bytes | None],
    ) -> None:
        self._reader = reader
        self._access = access
        self._stream = stream
        self._names = names
        self._found = dict(zip(asked.tolist(), found, strict=True))
        self.counts = np.zeros(keys, dtype=np.int64)
        self.row_bytes = np.zeros(keys, dtype=np.int64)
        for position, entry in self._found.items():
            if entry is not None:
                found_entry = unpack_entry(entry)
                self.counts[position] = found_entry.rows
                self.row_bytes[position] = found_entry.row_bytes

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        with self._access():
            pass  # an old probe is refused at once
        wanted = checked_positions(self.counts, positions).tolist()
        chunks = (
            chunk
            for position in wanted
            if (entry := self._found.get(position)) is not None
            for chunk in chunks_of(position, self._names[position], entry)
        )
        return self._reader.rows_of(self._access, self._stream, chunks, max_bytes)
