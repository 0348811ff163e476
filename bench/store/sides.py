"""The sides of the comparison: our store, and key-value stores used as well as they can be.

Every side starts from Arrow and ends with Arrow in memory, sorts each batch, and gets the same
memory cap. The peers use our compiled codecs for keys and rows: what they spend there is kept
apart (``conversion_seconds``), so that their time for raw bytes can be told.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from bench.common.workloads import ROWS, Workload
from bench.store.layouts import Engine, Layout
from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.stats import WriteStats
from lsmstate.store import StateStore

#: Rows are decoded in pieces of about this size on every side.
PIECE_BYTES = 1 << 20
PIECE_ROWS = 10_000


class Match(NamedTuple):
    """Rows found, and for each the position of its key in the batch that asked."""

    positions: np.ndarray
    rows: pa.RecordBatch


class Side(Protocol):
    """A store in one directory, with streams 0, 1, ... of one schema."""

    conversion_seconds: float

    def append(self, stream: int, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        """Store a batch; keys in any order."""
        ...

    def probe(self, stream: int, keys: pa.RecordBatch) -> Iterator[Match]:
        """All rows of sorted distinct keys."""
        ...

    def join(self, first: int, second: int, keys: pa.RecordBatch) -> Iterator[Match]:
        """All rows, in both streams, of those of the sorted distinct keys that both hold."""
        ...

    def settle(self) -> None:
        """Flush, then wait until no merge is due."""
        ...

    def merge_all(self) -> None:
        """Merge everything into one run."""
        ...

    def close(self) -> None: ...


class OurSide:
    """LsmStore: one process's, with its changelog, or one attempt's, without."""

    conversion_seconds = 0.0

    def __init__(self, store: StateStore, logged: bool) -> None:
        self._store: Any = store
        #: An attempt merges what is due in its one commit, and takes no writes after it.
        self._logged = logged

    @classmethod
    def process(cls, directory: str, work: Workload, streams: int, options: Options) -> Self:
        schemas = [work.stream_schema(f"s{number}") for number in range(streams)]
        return cls(LsmStore.open(directory, schemas, options=options), logged=True)

    @classmethod
    def attempt(
        cls,
        directory: str,
        work: Workload,
        options: Options,
        pointer: str | None,
        batch_id: int,
        streams: int = 1,
    ) -> Self:
        os.makedirs(directory, exist_ok=True)
        return cls(
            LsmStore.open_attempt(
                directory,
                [work.stream_schema(f"s{number}") for number in range(streams)],
                pointer=pointer,
                batch_id=batch_id,
                attempt_id="bench",
                options=options,
            ),
            logged=False,
        )

    def append(self, stream: int, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        self._store.append(f"s{stream}", rows, keys)

    def probe(self, stream: int, keys: pa.RecordBatch) -> Iterator[Match]:
        probe = self._store.probe(f"s{stream}", keys)
        for match in probe.fetch(np.flatnonzero(probe.counts), PIECE_BYTES):
            yield Match(*match)

    def join(self, first: int, second: int, keys: pa.RecordBatch) -> Iterator[Match]:
        encoded = KeyCodec(keys.schema).encode(keys)
        one = self._store.probe(f"s{first}", encoded)
        other = self._store.probe(f"s{second}", encoded, np.flatnonzero(one.counts))
        both = np.flatnonzero(other.counts)
        for probe in (one, other):
            for match in probe.fetch(both, PIECE_BYTES):
                yield Match(*match)

    def commit(self) -> str:
        """The pointer; an attempt takes no more writes then."""
        return self._store.commit()

    def merge_due(self) -> None:
        """All merges that are due, also those that an attempt would leave to the next ones."""
        self._store.compact(due_only=True)

    def writes(self) -> WriteStats:
        """What was written so far."""
        writes: WriteStats = self._store.stats().writes
        return writes

    def settle(self) -> None:
        self._store.commit()
        if self._logged:
            self.merge_due()

    def merge_all(self) -> None:
        if self._logged:
            self._store.compact()

    def close(self) -> None:
        self._store.close()


class PeerSide:
    """A key-value store: an engine, and the layout of the multimap in it."""

    def __init__(self, work: Workload, streams: int, engine: Engine, layout: Layout) -> None:
        self._engine = engine
        self._layout = layout
        self._keys = KeyCodec(work.key_schema)
        self._rows = RowCodec(ROWS)
        # One stream alone needs no name in front of its keys.
        self._prefixes = [b""] if streams == 1 else [bytes([number]) for number in range(streams)]
        self.conversion_seconds = 0.0

    @contextmanager
    def _converting(self) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.conversion_seconds += time.thread_time() - start

    def append(self, stream: int, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        with self._converting():
            encoded = self._keys.encode(keys)
            distinct, starts = encoded.distinct()
            names = self._named(stream, distinct.to_pylist())
            values = self._rows.encode(rows).to_pylist()
            values = [values[place] for place in encoded.order.tolist()]
        self._layout.append(self._engine, names, np.diff(starts), values)

    def probe(self, stream: int, keys: pa.RecordBatch) -> Iterator[Match]:
        with self._converting():
            names = self._named(stream, self._keys.encode(keys).to_pylist())
        counts, values = self._layout.find(self._engine, names)
        yield from self._matches(np.repeat(np.arange(len(names)), counts), values)

    def join(self, first: int, second: int, keys: pa.RecordBatch) -> Iterator[Match]:
        with self._converting():
            names = self._keys.encode(keys).to_pylist()
            asked = self._named(first, names)
        counts, values = self._layout.find(self._engine, asked)
        present = np.flatnonzero(counts)
        with self._converting():
            asked = self._named(second, [names[place] for place in present.tolist()])
        others, other_values = self._layout.find(self._engine, asked)
        yield from self._matches(np.repeat(present, others), other_values)
        both = np.zeros(len(names), dtype=bool)
        both[present] = np.asarray(others) > 0
        positions = np.repeat(np.arange(len(names)), counts)
        kept = np.flatnonzero(both[positions])
        yield from self._matches(positions[kept], [values[place] for place in kept.tolist()])

    def settle(self) -> None:
        self._engine.settle()

    def merge_all(self) -> None:
        self._engine.merge_all()

    def close(self) -> None:
        self._engine.close()

    def _named(self, stream: int, names: list[bytes]) -> list[bytes]:
        prefix = self._prefixes[stream]
        return [prefix + name for name in names] if prefix else names

    def _matches(self, positions: np.ndarray, values: list[bytes]) -> Iterator[Match]:
        for start in range(0, len(values), PIECE_ROWS):
            with self._converting():
                rows = self._rows.decode(values[start : start + PIECE_ROWS])
            yield Match(positions[start : start + PIECE_ROWS], rows)
