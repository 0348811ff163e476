"""StoredWindow: the documents of one stream and window, in the store and in an index in memory.

- Documents are numbered as they come. The store has each under (window, number).
- The index in memory has the documents from ``low`` on. It is a cache, which may be dropped.
- The store has posting lists of the documents before ``listed``. What comes after them is read
  again by whoever opens the window: a tail of bounded length.
- Invariant: ``low <= listed``, so each document is found by the index, or by a list, or by both.
"""

import json
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.cython_ext.documents.document_index import DocumentIndex
from lsmstate.joins.distinct import distinct
from lsmstate.joins.document_reading import CELLS
from lsmstate.joins.local.documents.adaptive_index import AdaptiveIndex
from lsmstate.joins.local.documents.posting_keys import MOST_UNITS, Units
from lsmstate.joins.specs.documents import (
    DOCUMENT_KEY,
    POSTING_KEY,
    WINDOW_KEY,
    postings_of,
    windows_of,
)
from lsmstate.schema.arrow_sizes import pieces_of
from lsmstate.store import MultimapStore, Mutation

Numbers = npt.NDArray[np.int64]
#: The smaller cells of documents: where each one's end, and their numbers.
Cells = tuple[Numbers, Numbers] | None

#: Documents that are listed in one write, unless they have too many attributes.
_WRITE: Final = 2048
#: Bytes of a key of a write, at most; and the part of the store's memory that a write may take.
_KEY_BYTES: Final = 128
_PART_OF_MEMORY: Final = 8


class StoredWindow:
    """Made when the window is first met; see the module."""

    def __init__(
        self,
        stream: str,
        window: int,
        store: MultimapStore,
        new_index: Callable[[], DocumentIndex | AdaptiveIndex],
        read: Callable[[pa.RecordBatch], Documents],
    ) -> None:
        """Look up what the store has of it. ``read``: the documents of stored rows, by the values
        of the indexes that ``new_index`` makes."""
        self.stream = stream
        self.window = window
        self._store = store
        self._write_bytes = store.stats().memory_limit_bytes // _PART_OF_MEMORY
        self._new_index = new_index
        self._read = read
        #: Documents in the store.
        self.stored = self._last_number() + 1
        #: Those that were there when this object was made: on Spark, of earlier micro-batches.
        self.before = self.stored
        found = store.get(windows_of(stream), (window,))
        #: Documents that have posting lists.
        self.listed = found["indexed"][0].as_py() if found.num_rows else 0
        self.units = Units.from_text(found["units"][0].as_py()) if found.num_rows else None
        self.classes: list[int] = json.loads(found["classes"][0].as_py()) if found.num_rows else []
        self.low = self.listed
        self.index = new_index()

    def _last_number(self) -> int:
        pieces = self._store.iterate(self.stream, prefix=(self.window,), reverse=True, max_bytes=1)
        for entries in pieces:
            pieces.close()
            return int(entries.keys["document"][0].as_py())
        return -1

    @property
    def indexed(self) -> int:
        """Documents that the index or the lists have."""
        return self.low + len(self.index)

    def keys(self, count: int) -> Numbers:
        """The numbers of documents that are stored next."""
        first = self.stored
        self.stored += count
        return np.arange(first, self.stored, dtype=np.int64)

    def catch_up(self, is_full: Callable[[], bool], make_room: Callable[[], None]) -> None:
        """Read what the store has and the index does not; make room when the indexes are full.
        Cost: proportional to these."""
        while self.indexed < self.stored:
            low, high = (self.window, self.indexed), (self.window, self.stored)
            for entries in self._store.iterate(self.stream, low=low, high=high):
                documents = self._read(entries.rows)
                places = np.arange(len(documents), dtype=np.int64)
                self.index.append(documents, places, cells_of(entries.rows))
                if is_full():
                    break
            if self.indexed < self.stored:
                make_room()  # which writes, so no iterator is open

    def drop_index(self) -> None:
        """Forget the index, whose documents are listed."""
        assert self.listed == self.indexed
        self.low = self.listed
        self.index = self._new_index()

    def list_documents(self) -> None:
        """List all documents of the index that are not listed. Cost: proportional to these."""
        documents = self.index.documents
        places = np.arange(self.listed - self.low, len(self.index), dtype=np.int64)
        # A document has a list for each attribute, and for each choice of units.
        lists = documents.sizes()[places] + (1 << MOST_UNITS)
        for part in pieces_of(
            np.maximum(_KEY_BYTES * lists, self._write_bytes // _WRITE), self._write_bytes
        ):
            some = Documents(documents.values)
            some.append(documents, places[part])
            self._list(some)

    def _list(self, documents: Documents) -> None:
        if self.units is None:
            self.units = Units.chosen(documents)
        keyed = self.units.of(documents)
        keys, places = keyed.stored_keys()
        classes = sorted({*self.classes, *np.unique(keyed.classes).tolist()})
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], (places[order] + self.listed).astype("<u4")
        starts = np.flatnonzero(np.diff(keys, prepend=~keys[:1]) != 0) if len(keys) else keys
        ends = np.append(starts, len(keys)).astype(np.int32) * 4
        lists = pa.Array.from_buffers(
            pa.binary(), len(starts), [None, pa.py_buffer(ends), pa.py_buffer(numbers.tobytes())]
        )
        found = pa.array(keys[starts].view(np.int64)) if len(keys) else pa.array([], pa.int64())
        windows = pa.array(np.full(len(starts), self.window, np.int64))
        known = {
            "indexed": self.listed + len(documents),
            "units": self.units.text(),
            "classes": json.dumps(classes),
        }
        self._store.write(
            [
                Mutation(
                    "append",
                    postings_of(self.stream),
                    pa.RecordBatch.from_arrays([windows, found], schema=POSTING_KEY),
                    pa.RecordBatch.from_arrays([lists], names=["documents"]),
                ),
                Mutation(
                    "put",
                    windows_of(self.stream),
                    pa.RecordBatch.from_pylist([{"window": self.window}], schema=WINDOW_KEY),
                    [known],
                ),
            ]
        )
        self.listed += len(documents)
        self.classes = classes

    def candidates(
        self, documents: Documents, places: Numbers, piece_bytes: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Documents before ``low`` that may match, from the lists: positions among ``places``, and
        numbers. No pair comes twice.

        Cost: a lookup per document and class, and the lists. Memory: a piece of them.
        """
        if not self.low or self.units is None:
            return
        keyed = self.units.of(documents)
        once, once_at, often, often_at = keyed.probed_keys(self.classes, places)
        position = np.zeros(len(documents), np.int64)
        position[places] = np.arange(len(places))
        yield from self._lists(once, position[once_at], piece_bytes)
        order = np.argsort(position[often_at], kind="stable")
        often, often_at = often[order], position[often_at][order]
        first = 0
        while first < len(often):
            # All keys of a document are in one part.
            last = min(first + _WRITE, len(often))
            last = int(np.searchsorted(often_at, often_at[last - 1], side="right"))
            yield from self._distinct_pairs(often[first:last], often_at[first:last], piece_bytes)
            first = last

    def _distinct_pairs(
        self, keys: npt.NDArray[np.uint64], positions: Numbers, piece_bytes: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """The pairs in the lists of some keys, each once. ``positions`` ascend.

        Memory: a piece of them and the next, and a bit for each document of the window where one
        document alone has more. Fewer documents at once are tried first.
        """
        waiting = [(0, len(keys))]
        while waiting:
            first, last = waiting.pop()
            some, at = keys[first:last], positions[first:last]
            found = self._few_pairs(some, at, piece_bytes)
            if found is not None:
                if len(found):
                    yield found >> 32, found & 0xFFFFFFFF
            elif at[0] == at[-1]:
                for numbers in self._each_once(some, at, piece_bytes):
                    yield np.full(len(numbers), at[0]), numbers
            else:
                half = int(np.searchsorted(at, at[len(at) // 2]))
                if not half:  # the first document has more than half of the keys
                    half = int(np.searchsorted(at, at[0], side="right"))
                waiting += [(first + half, last), (first, first + half)]

    def _few_pairs(
        self, keys: npt.NDArray[np.uint64], positions: Numbers, piece_bytes: int
    ) -> Numbers | None:
        """The distinct pairs in the lists of some keys as one number each; None: more than a
        piece."""
        found = np.empty(0, np.int64)
        for at, numbers in self._lists(keys, positions, piece_bytes):
            found = distinct(np.concatenate([found, (at << 32) | numbers]))
            if 8 * len(found) > piece_bytes:
                return None
        return found

    def _each_once(
        self, keys: npt.NDArray[np.uint64], positions: Numbers, piece_bytes: int
    ) -> Iterator[Numbers]:
        """The numbers in the lists of one document, each once."""
        seen = np.zeros(self.low // 8 + 1, np.uint8)
        for _, numbers in self._lists(keys, positions, piece_bytes):
            bits = (seen[numbers >> 3] >> (numbers & 7).astype(np.uint8)) & 1
            new = distinct(numbers[bits == 0])
            if len(new):
                cells = new >> 3
                starts = np.flatnonzero(np.diff(cells, prepend=-1))
                mask = np.left_shift(1, new & 7).astype(np.uint8)
                seen[cells[starts]] |= np.bitwise_or.reduceat(mask, starts)
                yield new

    def _lists(
        self, keys: npt.NDArray[np.uint64], positions: Numbers, piece_bytes: int
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """The numbers in the lists of some keys, beside each the position of its document."""
        if not len(keys):
            return
        distinct, at = np.unique(keys, return_inverse=True)
        order = np.argsort(at, kind="stable")
        ends = np.cumsum(np.bincount(at, minlength=len(distinct)))
        probed = pa.RecordBatch.from_arrays(
            [
                pa.array(np.full(len(distinct), self.window, np.int64)),
                pa.array(distinct.view(np.int64)),
            ],
            schema=POSTING_KEY,
        )
        probe = self._store.probe(postings_of(self.stream), probed)
        present = np.flatnonzero(probe.counts)
        for matches in probe.fetch(present, piece_bytes):
            column = matches.rows.column("documents")
            offsets = np.frombuffer(column.buffers()[1], np.int32)
            offsets = offsets[column.offset : column.offset + len(column) + 1]
            data = column.buffers()[2].to_pybytes()[offsets[0] : offsets[-1]]
            numbers = np.frombuffer(data, "<u4").astype(np.int64)
            sizes = np.diff(offsets) // 4
            starts = np.cumsum(sizes) - sizes
            # Each list once for each document that asked for it.
            key = np.asarray(matches.positions)
            asked = ends[key] - np.where(key > 0, ends[key - 1], 0)
            lists = np.repeat(np.arange(len(key)), asked)
            within = np.arange(len(lists)) - np.repeat(np.cumsum(asked) - asked, asked)
            askers = positions[order[np.where(key > 0, ends[key - 1], 0)[lists] + within]]
            bounds = np.cumsum(sizes[lists])
            first = 0
            while first < len(lists):
                before = bounds[first - 1] if first else 0
                last = max(
                    first + 1, int(np.searchsorted(bounds, before + piece_bytes // 4, "right"))
                )
                some = lists[first:last]
                of = np.repeat(np.arange(len(some)), sizes[some])
                begins = np.cumsum(sizes[some]) - sizes[some]
                inside = np.arange(len(of)) - np.repeat(begins, sizes[some])
                found = numbers[starts[some][of] + inside]
                kept = found < self.low
                yield askers[first:last][of[kept]], found[kept]
                first = last

    def rows(self, numbers: Numbers, piece_bytes: int) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
        """The stored rows of documents, whose numbers ascend: positions among them, and rows."""
        keys = pa.RecordBatch.from_arrays(
            [pa.array(np.full(len(numbers), self.window, np.int64)), pa.array(numbers)],
            schema=DOCUMENT_KEY,
        )
        probe = self._store.probe(self.stream, keys)
        for matches in probe.fetch(np.arange(len(numbers), dtype=np.int64), piece_bytes):
            yield np.asarray(matches.positions), matches.rows


def cells_of(rows: pa.RecordBatch) -> Cells:
    """The smaller cells of rows; None: the rows have no such column."""
    if CELLS not in rows.schema.names:
        return None
    column = rows.column(CELLS)
    numbers = column.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.cumsum(counts).astype(np.int64), numbers
