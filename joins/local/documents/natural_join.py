"""NaturalLocalJoin: documents that share attributes, and agree on all attributes they share.

- A batch is stored first. Each of its documents then looks for partners among those before it.
- Recent documents are found in an index in memory, older ones by posting lists in the store
  (``stored_window``). So a batch costs what its own documents cost, and a bounded tail of the
  window where another process had the bucket before.
- Windows are made of panes. A document is stored in one pane, and looks in all panes that some
  window holds together with its own.
- A document that several buckets store has its smaller cells beside it. The smallest common cell
  of a pair gives it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.documents.attribute_values import Documents
from lsmstate.cython_ext.documents.json_reader import FAULTS
from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.document_reading import CELLS, panes
from lsmstate.joins.local.documents.index_memory import IndexMemory
from lsmstate.joins.local.documents.merged import united
from lsmstate.joins.local.documents.stored_window import Cells, StoredWindow, cells_of
from lsmstate.joins.local.documents.verification import Verification
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.parts.time_checks import LateRows
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS, kept_watermark, watermark_write
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.specs.documents import (
    DOCUMENT_KEY,
    MERGED,
    DocumentWindow,
    NaturalSpec,
    postings_of,
    windows_of,
)
from lsmstate.joins.specs.one_key import joined_schema
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes
from lsmstate.schema.batches import as_batch
from lsmstate.store import KeyBounds, MultimapStore, Mutation

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Counters, beside ``late_rows`` and those of the table of routes.
MALFORMED: Final = "malformed_documents"
FOUND: Final = "pairs"
DROPS: Final = "index_drops"
DOCUMENTS: Final = "documents"
COPIES: Final = "copies"
COUNTERS: Final = (MALFORMED, FOUND, DROPS, DOCUMENTS, COPIES)

#: Bytes and number of documents that are read at once.
_SLICE_BYTES: Final = 4 << 20
_SLICE_ROWS: Final = 8192
#: Pairs that an index gives at once.
_PAIRS: Final = 1 << 16
#: Documents without posting lists that a commit leaves, and the next process reads again.
TAIL: Final = 2048
#: Part of the store's memory cap that the indexes may take beside it, and the least they may.
PART: Final = 4
LEAST_BYTES: Final = 1 << 20


class _Looking(NamedTuple):
    """Documents that look for partners in a window."""

    rows: pa.RecordBatch
    """All rows of the slice."""
    documents: Documents
    places: Numbers
    """Their places among the documents."""
    at: Numbers
    """Their places among the rows."""
    target: StoredWindow
    limits: Numbers
    """Beside each, the number before which partners count."""
    cells: Cells
    """Of all documents."""


class NaturalLocalJoin:
    """The local join of a NaturalSpec. Not thread-safe."""

    def __init__(self, spec: NaturalSpec, store: MultimapStore, context: Context) -> None:
        self._spec = spec
        self._store = store
        self._bucket = context.bucket
        self._piece_bytes = context.piece_bytes
        cap = store.stats().memory_limit_bytes
        self._memory = IndexMemory(spec, max(LEAST_BYTES, cap // PART))
        self._gatherer = Gatherer(list(spec.sides.values()), joined_schema(spec.sides))
        self._codec: RowCodec | None = None
        self._windows: dict[tuple[str, int], StoredWindow] = {}
        self._unfinished: Results | None = None
        self._pairs = self._malformed = self._late = self._documents = self._copies = 0
        self.late_rows: pa.RecordBatch | None = None
        #: With ``malformed="side"``: the rows of the last batch that hold no document.
        self.malformed_rows: pa.RecordBatch | None = None
        self.watermark_us: int | None = None
        self._lateness: Mapping[str, LateRows] = {}
        if spec.event_time is not None:
            self.watermark_us = kept_watermark(store)
            self._lateness = {
                name: LateRows(name, column, spec.streams[name])
                for name, column in spec.event_time.columns.items()
            }
        self._first_pane = self._least_pane()

    @property
    def counts(self) -> Mapping[str, int]:
        """``late_rows``, ``malformed_documents``, ``pairs``; ``index_drops``: how often the index
        in memory grew too large and was dropped; ``copies``: documents that were stored, and
        ``documents``: those that are this bucket's own."""
        found = {
            MALFORMED: self._malformed,
            FOUND: self._pairs,
            DROPS: self._memory.dropped,
            DOCUMENTS: self._documents,
            COPIES: self._copies,
        }
        return found if self._spec.event_time is None else {LATE_ROWS: self._late, **found}

    # What arrives

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results.

        A batch that is refused changes nothing. Read the results to the end, or close them, before
        the next call.
        """
        stream, spec = batch.stream, self._spec
        spec.check_stream(stream)
        call = f"process({stream!r})"
        check_finished(call, self._unfinished)
        if batch.role == Role.PROBE:
            raise InvalidArgumentError(
                f"{call}: the rows have the role PROBE, and this kind of join stores all its rows; "
                "route them by a routing that gives STORE or COPY"
            )
        rows = as_batch(batch.rows, spec.streams[stream], call)
        if spec.is_routed:
            rows = self._with_cells(rows, batch.marks)
        before = self._late, self._malformed
        try:
            rows = self._in_time(stream, rows, counts=batch.role == Role.STORE)
            self.malformed_rows = None
            self._forget_counted()
            self._make_room()
            rows, documents, places = self._readable(stream, rows, call, batch.role == Role.STORE)
            panes = self._panes_of(stream, rows)
            numbers = self._stored(stream, rows, panes)
        except BaseException:
            self._late, self._malformed = before
            raise
        self._copies += rows.num_rows
        self._documents += rows.num_rows if batch.role == Role.STORE else 0
        if documents is not None and documents.values is not self._memory.values:
            documents = None  # the indexes were dropped since these were read
        found = self._found(stream, rows, panes, numbers, documents, places)
        self._unfinished = self._results(found)
        return self._unfinished

    def _with_cells(self, rows: pa.RecordBatch, marks: pa.RecordBatch | None) -> pa.RecordBatch:
        """The rows with their cells below this one."""
        if marks is None:
            cells = pa.array([[]] * rows.num_rows, pa.list_(pa.int64()))
        else:
            column = marks.column(CELLS)
            lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            numbers = column.flatten().to_numpy(zero_copy_only=False)
            kept = numbers < self._bucket
            of = np.repeat(np.arange(len(lengths)), lengths)
            offsets = np.zeros(len(lengths) + 1, np.int32)
            np.cumsum(np.bincount(of[kept], minlength=len(lengths)), out=offsets[1:])
            cells = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers[kept]))
        schema = self._spec.stream_schemas[0].rows
        return pa.RecordBatch.from_arrays(
            [*rows.columns, cells], schema=pa.schema([*rows.schema, schema.field(CELLS)])
        )

    def _in_time(self, stream: str, rows: pa.RecordBatch, counts: bool) -> pa.RecordBatch:
        """The rows that are not late."""
        timing = self._spec.event_time
        if timing is None:
            return rows
        is_late = np.zeros(rows.num_rows, np.bool_)
        if self.watermark_us is not None:
            is_late = self._lateness[stream].late(rows, self.watermark_us)
        is_late |= rows.column(timing.columns[stream]).is_null().to_numpy(zero_copy_only=False)
        if timing.late == "side":
            late = rows.filter(pa.array(is_late))
            self.late_rows = late.select(self._spec.streams[stream].names)
        if not is_late.any():
            return rows
        self._late += int(is_late.sum()) if counts else 0
        return rows.filter(pa.array(~is_late))

    def _readable(
        self, stream: str, rows: pa.RecordBatch, call: str, counts: bool
    ) -> tuple[pa.RecordBatch, Documents | None, Numbers]:
        """The rows whose documents can match; the documents, if they are few, and their places."""
        column = rows.column(self._spec.documents[stream])
        slices = list(self._slices(rows))
        faults, sizes = [], []
        documents: Documents | None = None
        for each in slices:
            documents = self._memory.reader.read(column.slice(each.start, each.stop - each.start))
            faults.append(documents.faults_found())
            sizes.append(documents.sizes())
            if len(slices) > 1:
                documents = None
                self._make_room()
        if not slices:
            return rows, None, np.empty(0, np.int64)
        fault = np.concatenate(faults)
        self._judge(stream, rows, fault, call, counts)
        kept = np.concatenate(sizes) >= self._spec.at_least
        places = np.flatnonzero(kept)
        return (rows if kept.all() else rows.filter(pa.array(kept))), documents, places

    def _judge(
        self,
        stream: str,
        rows: pa.RecordBatch,
        fault: npt.NDArray[np.uint8],
        call: str,
        counts: bool,
    ) -> None:
        """What becomes of malformed documents."""
        bad = np.flatnonzero(fault)
        if self._spec.malformed == "side":
            self.malformed_rows = rows.take(pa.array(bad)).select(self._spec.streams[stream].names)
        if not len(bad):
            return
        if self._spec.malformed == "refuse":
            text = rows.column(self._spec.documents[stream])[int(bad[0])].as_py()
            raise InvalidArgumentError(
                f"{call}: the document in row {bad[0]} {FAULTS[int(fault[bad[0]])]}: {text[:200]!r}"
                '; correct it, or leave such documents out by malformed="skip"'
            )
        self._malformed += len(bad) if counts else 0

    def _slices(self, rows: pa.RecordBatch) -> Iterator[slice]:
        if not rows.num_rows:
            return iter(())
        least = -(-_SLICE_BYTES // _SLICE_ROWS)
        return pieces_of(np.maximum(row_sizes(rows), least), _SLICE_BYTES)

    # Windows

    def _panes_of(self, stream: str, rows: pa.RecordBatch) -> Numbers:
        """The pane of each row."""
        window = self._spec.window
        if window is None:
            return np.zeros(rows.num_rows, np.int64)
        if window.kind == "count":
            pane = self._last_pane(stream)
            held = self._window(stream, pane).stored
            return pane + (held + np.arange(rows.num_rows, dtype=np.int64)) // window.size
        assert self._spec.event_time is not None
        return panes(rows.column(self._spec.event_time.columns[stream]), window.slide)

    def _last_pane(self, stream: str) -> int:
        """The pane that documents are counted into."""
        # A window without documents may be of a batch that was refused.
        known = [pane for (name, pane), w in self._windows.items() if name == stream and w.stored]
        if known:
            return max(known)
        if self._first_pane is not None:
            return self._first_pane
        pieces = self._store.iterate(stream, reverse=True, max_bytes=1)
        for entries in pieces:
            pieces.close()
            return int(entries.keys["window"][0].as_py())
        return 0

    def _window(self, stream: str, pane: int) -> StoredWindow:
        found = self._windows.get((stream, pane))
        if found is None:
            column = self._spec.documents[stream]
            found = self._windows[stream, pane] = StoredWindow(
                stream,
                pane,
                self._store,
                self._memory.new_index,
                lambda rows: self._memory.reader.read(rows.column(column)),
            )
        return found

    def _is_full(self) -> bool:
        return self._memory.is_full(self._windows.values())

    def _make_room(self) -> None:
        self._memory.make_room(self._windows.values())

    def _stored(self, stream: str, rows: pa.RecordBatch, panes: Numbers) -> Numbers:
        """Store rows, and return their numbers in their panes."""
        numbers = np.empty(rows.num_rows, np.int64)
        if not rows.num_rows:
            return numbers
        before: list[tuple[StoredWindow, int]] = []
        for pane in np.unique(panes):
            window = self._window(stream, int(pane))
            for each in (window, *self._partners(stream, int(pane))):
                each.catch_up(self._is_full, self._make_room)
        for pane in np.unique(panes):
            window = self._window(stream, int(pane))
            before.append((window, window.stored))
            here = np.flatnonzero(panes == pane)
            numbers[here] = window.keys(len(here))
        keys = pa.RecordBatch.from_arrays([pa.array(panes), pa.array(numbers)], schema=DOCUMENT_KEY)
        try:
            self._store.append(stream, rows, keys)
        except BaseException:
            for window, stored in before:
                window.stored = stored
            raise
        return numbers

    def _partners(self, stream: str, pane: int) -> list[StoredWindow]:
        """The windows in which documents of a pane have partners."""
        names = [n for n in self._spec.streams if n != stream] or [stream]
        window = self._spec.window
        reach = 0 if window is None or window.kind == "count" else window.panes - 1
        found = [
            self._window(name, each)
            for name in names
            for each in range(pane - reach, pane + reach + 1)
            if self._first_pane is None or each >= self._first_pane
        ]
        return [each for each in found if each.stored or each.stream == stream]

    # What is found

    def _results(self, found: Iterator[Picked]) -> Results:
        schema = self._spec.output_schema
        if self._spec.output == "merged":
            merged = (
                self._merged(piece)
                for picked in found
                for piece in picked.made(self._gatherer, self._piece_bytes)
            )
            return Results(merged, schema=schema)
        pieces = (
            piece for picked in found for piece in picked.made(self._gatherer, self._piece_bytes)
        )
        return Results(pieces, found, schema)

    def _found(
        self,
        stream: str,
        rows: pa.RecordBatch,
        panes: Numbers,
        numbers: Numbers,
        documents: Documents | None,
        places: Numbers,
    ) -> Iterator[Picked]:
        """The partners of rows that were stored just now."""
        slices = list(self._slices(rows)) if documents is None else [slice(0, rows.num_rows)]
        column = self._spec.documents[stream]
        for each in slices:
            some = rows.slice(each.start, each.stop - each.start)
            if documents is None:
                self._make_room()
                read = self._memory.reader.read(some.column(column))
                at = np.arange(some.num_rows, dtype=np.int64)
            else:
                read, at = documents, places
            yield from self._found_in(stream, some, panes[each], numbers[each], read, at)

    def _found_in(
        self,
        stream: str,
        rows: pa.RecordBatch,
        panes: Numbers,
        numbers: Numbers,
        documents: Documents,
        places: Numbers,
    ) -> Iterator[Picked]:
        cells = cells_of(rows)
        texts = rows.column(self._spec.documents[stream])
        verification = Verification(
            self._memory, self._spec.at_least, texts, documents, places, cells
        )
        all_cells = verification.cells
        tasks: list[_Looking] = []
        for pane in np.unique(panes):
            at = np.flatnonzero(panes == pane)
            own = self._window(stream, int(pane))
            for target in self._partners(stream, int(pane)):
                if target is own:
                    limits = numbers[at]
                else:
                    limits = np.full(len(at), target.indexed, np.int64)
                tasks.append(_Looking(rows, documents, places[at], at, target, limits, all_cells))
            own.index.append(documents, places[at], None if cells is None else _some(cells, at))
        for task in tasks:
            yield from self._in_index(task)
            yield from self._in_lists(task, verification)

    def _in_index(self, task: _Looking) -> Iterator[Picked]:
        """Partners that the index in memory has."""
        target = task.target
        limits = np.maximum(task.limits - target.low, 0)
        first = skip = 0
        while first < len(task.places):
            positions, found, first, skip = target.index.pairs(
                task.documents, task.places, limits, first, skip, _PAIRS, task.cells
            )
            if len(positions):
                yield from self._fetched(task, positions, found + target.low)

    def _fetched(self, task: _Looking, positions: Numbers, numbers: Numbers) -> Iterator[Picked]:
        """Pairs of documents that match, with the stored rows of the partners."""
        wanted, at = np.unique(numbers, return_inverse=True)
        order = np.argsort(at, kind="stable")
        ends = np.cumsum(np.bincount(at, minlength=len(wanted)))
        for fetched, rows in task.target.rows(wanted, self._piece_bytes):
            first, last = int(fetched[0]), int(fetched[-1])
            pairs = order[(ends[first - 1] if first else 0) : ends[last]]
            yield from self._picked(task, positions[pairs], rows, at[pairs] - first, numbers[pairs])

    def _in_lists(self, task: _Looking, verification: Verification) -> Iterator[Picked]:
        """Partners that only the posting lists have."""
        target = task.target
        column = self._spec.documents[target.stream]
        for positions, numbers in target.candidates(task.documents, task.places, self._piece_bytes):
            wanted, at = np.unique(numbers, return_inverse=True)
            order = np.argsort(at, kind="stable")
            ends = np.cumsum(np.bincount(at, minlength=len(wanted)))
            for fetched, rows in target.rows(wanted, self._piece_bytes):
                first, last = int(fetched[0]), int(fetched[-1])
                pairs = order[(ends[first - 1] if first else 0) : ends[last]]
                is_match = verification.matches(
                    task.at[positions[pairs]],
                    rows.column(column),
                    at[pairs] - first,
                    cells_of(rows),
                )
                pairs = pairs[is_match]
                if len(pairs):
                    yield from self._picked(
                        task, positions[pairs], rows, at[pairs] - first, numbers[pairs]
                    )

    def _picked(
        self,
        task: _Looking,
        positions: Numbers,
        rows: pa.RecordBatch,
        at: Numbers,
        numbers: Numbers,
    ) -> Iterator[Picked]:
        """Pairs as picks of the arriving rows and of stored ones, whose numbers stand beside."""
        self._pairs += len(positions)
        spec = self._spec
        found = [(rows, at), (task.rows, task.at[positions])]
        if not spec.is_of_one_stream:
            if task.target.stream != next(iter(spec.streams)):
                found.reverse()
            yield self._side_by_side(found)
            return
        # Of one stream, the document that came first stands first. Inside a micro-batch of Spark
        # that is another one in a repeated task, so there the row of the greater hash does.
        turned = np.zeros(len(positions), np.bool_)
        is_new = numbers >= task.target.before
        if spec.is_routed and is_new.any():
            new = np.flatnonzero(is_new)
            stored, arriving = (self._hashes(*each, new) for each in found)
            turned[new] = arriving > stored
        for is_turned in (False, True):
            some = np.flatnonzero(turned == is_turned)
            if len(some):
                pairs = [(batch, where[some]) for batch, where in found]
                yield self._side_by_side(pairs[::-1] if is_turned else pairs)

    def _hashes(self, rows: pa.RecordBatch, at: Numbers, pairs: Numbers) -> npt.NDArray[np.uint64]:
        """The hashes of the rows of some pairs."""
        ((stream, schema),) = self._spec.streams.items()
        used, of = np.unique(at[pairs], return_inverse=True)
        if self._codec is None:
            self._codec = RowCodec(schema)
        plain = rows.take(pa.array(used)).select(self._spec.streams[stream].names)
        return content_hashes(plain, self._codec)[of]

    def _side_by_side(self, found: list[tuple[pa.RecordBatch, Numbers]]) -> Picked:
        sides = self._spec.sides.values()
        batches = [batch.select(side.names) for (batch, _), side in zip(found, sides, strict=True)]
        places = [where for _, where in found]
        sizes = sum(row_sizes(batch)[where] for batch, where in zip(batches, places, strict=True))
        return Picked(batches, places, np.asarray(sizes))

    def _merged(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """The ids of both documents, and one document of all their attributes."""
        width = piece.num_columns // 2
        first, second = piece.column(width - 1), piece.column(2 * width - 1)
        texts = [
            json.dumps(united(json.loads(a), json.loads(b)), ensure_ascii=False)
            for a, b in zip(first.to_pylist(), second.to_pylist(), strict=True)
        ]
        columns = [*piece.columns[: width - 1], *piece.columns[width : 2 * width - 1]]
        schema = self._spec.output_schema
        assert schema.names[-1] == MERGED
        return pa.RecordBatch.from_arrays([*columns, pa.array(texts, pa.string())], schema=schema)

    # Time and commits

    def advance(self, watermark_us: int) -> Results:
        """Set the watermark, and forget windows that no document can join any more."""
        timing = self._spec.event_time
        if timing is None or (self.watermark_us is not None and watermark_us <= self.watermark_us):
            return Results(())
        check_finished("advance", self._unfinished)
        self._store.write([watermark_write(watermark_us)])
        self.watermark_us = watermark_us
        first_pane = self._least_pane()
        if first_pane is not None and first_pane != self._first_pane:
            self._forget(first_pane)
        return Results(())

    def _least_pane(self) -> int | None:
        """The first pane that is kept."""
        window = self._spec.window
        if self.watermark_us is None or window is None:
            return None
        return least_pane(window, self.watermark_us)

    def _forget(self, first_pane: int) -> None:
        """Forget the windows before one."""
        bounds = KeyBounds(high=(first_pane,))
        self._store.write(
            [
                Mutation("delete_range", each, bounds)
                for name in self._spec.streams
                for each in (name, postings_of(name), windows_of(name))
            ]
        )
        self._first_pane = first_pane
        for stream, pane in list(self._windows):
            if pane < first_pane:
                del self._windows[stream, pane]

    def finish(self) -> None:
        """List what the next process should not read again; to be called before a commit."""
        self._forget_counted()
        for each in self._windows.values():
            if each.indexed - each.listed >= TAIL:
                each.list_documents()

    def close(self) -> None:
        """Release the memory of the indexes."""
        self._windows.clear()

    def _forget_counted(self) -> None:
        """Forget windows of a number of documents that are full."""
        window = self._spec.window
        if window is None or window.kind != "count":
            return
        for name in self._spec.streams:
            pane = self._last_pane(name)
            if self._window(name, pane).stored >= window.size:
                pane += 1
            if pane > (self._first_pane or 0):
                self._forget(pane)


def least_pane(window: DocumentWindow, watermark_us: int) -> int:
    """The first pane that a document after the watermark may have a partner in."""
    return (watermark_us + 1 - window.size) // window.slide + 1


def _some(cells: tuple[Numbers, Numbers], at: Numbers) -> tuple[Numbers, Numbers]:
    """The cells of some rows."""
    ends, numbers = cells
    starts = np.concatenate([[0], ends[:-1]])
    counts = (ends - starts)[at]
    of = np.repeat(np.arange(len(at)), counts)
    inside = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.cumsum(counts).astype(np.int64), numbers[starts[at][of] + inside]
