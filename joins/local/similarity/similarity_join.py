"""SimilarityJoin: a row is stored once, and looks for partners wherever one may lie.

- Invariant: the row that comes later finds the earlier one, so a pair is found once.
- A row, and what leads to it, are one write. After a write that failed, what the index learned
  from its rows is forgotten, and read again from the store.
- Arrival numbers tell earlier from later rows of one stream. Two rows of one micro-batch that lie
  in two buckets are told apart by their content (``parts/pair_order.py``).
- Candidates are verified in float64. What is no pair by time is left out before that.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.rows.gather import Gatherer
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.joins.local.parts.full_history import KeepsAllRows
from lsmstate.joins.local.parts.pair_order import content_hashes, is_greater
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.parts.row_picks import Picked
from lsmstate.joins.local.parts.time_checks import microseconds
from lsmstate.joins.local.parts.write_parts import WriteParts, write_all
from lsmstate.joins.local.similarity.coded import Coded
from lsmstate.joins.local.similarity.function_metric import FunctionSpace
from lsmstate.joins.local.similarity.homes import Blocks, Grid, Index, can_use_grid, placed
from lsmstate.joins.local.similarity.kept_points import KeptPoints, Level, can_keep, common_size
from lsmstate.joins.local.similarity.keyed import Keyed
from lsmstate.joins.local.similarity.measures import (
    Measure,
    Panels,
    Places,
    Ready,
    UserMeasure,
    all_candidates,
    measure_of,
)
from lsmstate.joins.local.similarity.pivots import Pivots
from lsmstate.joins.local.similarity.s3j import S3j
from lsmstate.joins.local.similarity.spaces import Space, space_of
from lsmstate.joins.local.similarity.stretches import Groups, Known, Stretches, pairs_of
from lsmstate.joins.local.similarity.vectors import arrived
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.similarity import (
    ARRIVAL,
    FACTS,
    LEAST_CODED,
    SimilaritySpec,
    has_codes,
    has_keys,
)
from lsmstate.joins.specs.window import TimeWindow
from lsmstate.schema.arrow_sizes import pieces_of, row_sizes, sizes_of
from lsmstate.schema.batches import as_batch
from lsmstate.store import MultimapStore, Mutation

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Stored rows, and pairs of places, of arriving and of stored rows, with their distances.
Close = tuple["Stored", Places, Places, npt.NDArray[np.float64]]

#: Counters: pairs that were compared, pairs that were then computed in float64, those that are
#: close, pairs that are close by the triangle inequality and so were not compared, distances from
#: pivots or centroids, rows that can match nothing, and rows that were left out.
COUNTERS: Final = (
    "compared_pairs",
    "candidate_pairs",
    "close_pairs",
    "certain_pairs",
    "pivot_distances",
    "ignored_vectors",
    "malformed_vectors",
)
#: Rows that look for partners at once: stored rows are read once for all of them.
SLICE_ROWS: Final = 4096
_SLICE_PIECES: Final = 32
#: Candidates that are verified at once.
_VERIFIED_PAIRS: Final = 1 << 16
#: Members of groups whose tiles are kept.
_MOST_KEPT: Final = 16 * SLICE_ROWS
_ARRIVED: Final = "rows that arrived"
_DIMENSION: Final = "dimension"


class SimilarityJoin(KeepsAllRows):
    """The local join of a SimilaritySpec. It is not thread-safe."""

    def __init__(self, spec: SimilaritySpec, store: MultimapStore, context: Context) -> None:
        self._spec = spec
        self._store = store
        self._piece_bytes = context.piece_bytes
        self._names = list(spec.streams)
        self._unfinished: Results | None = None
        #: Whether the store may lack what this object knows.
        self._is_ahead = False
        self._counts = dict.fromkeys(COUNTERS, 0)
        #: Rows that came before this object was made, on Spark before this micro-batch.
        self._before = self._fact(_ARRIVED) or 0
        self._arrived = self._before
        #: With ``malformed="side"``: the rows of the last batch that hold no vector of the join.
        self.malformed_rows: pa.RecordBatch | None = None
        self._codecs = {name: RowCodec(schema) for name, schema in spec.streams.items()}
        first, last = self._names[0], self._names[-1]
        self._sides: list[_Side] = []
        if not spec.is_anti:
            for name, columns in zip((first, last), spec.shown_columns, strict=True):
                self._sides.append(_Side.of(spec.streams[name], columns))
            sides = [side.schema for side in self._sides if side.columns]
            distances = [_DISTANCES] if spec.shows_distance else []
            self._gatherer = Gatherer([*sides, *distances], spec.output_schema)
        self._index: Index = Blocks(spec, store)
        self._know(self._fact(_DIMENSION))

    @classmethod
    def of(cls, spec: SimilaritySpec, store: MultimapStore, context: Context) -> "SimilarityJoin":
        """The join in a bucket."""
        return cls(spec, store, context)

    @property
    def counts(self) -> Mapping[str, int]:
        """See ``COUNTERS``."""
        distances = self._counts["pivot_distances"] + self._index.compared
        pairs = self._counts["compared_pairs"] + self._index.pairs
        return {**self._counts, "pivot_distances": distances, "compared_pairs": pairs}

    def advance(self, watermark_us: int) -> Results:
        """No results. Pivots end whose rows are all forgotten."""
        kept = self._spec.event_time.kept_us if self._spec.event_time is not None else {}
        if kept and None not in kept.values():
            longest = max(each for each in kept.values() if each is not None)
            self._index.forget(watermark_us - longest)
            if self._kept is not None:
                self._kept.forget(watermark_us - longest)
        return Results(())

    def close(self) -> None:
        """Release the memory of rows that are kept."""
        if self._kept is not None:
            self._kept.close()

    def _fact(self, name: str) -> int | None:
        kept = self._store.get(FACTS.name, (name,))
        return kept["value"][0].as_py() if kept.num_rows else None

    def _know(self, dimension: int | None) -> None:
        self._dimension = dimension
        self._measure: Measure = measure_of(self._spec, dimension)
        #: The space of a function of the user's, if pairs are found by its promise.
        self._promised: FunctionSpace | None = None
        if isinstance(self._measure, UserMeasure) and self._spec.algorithm != "tiles":
            self._promised = FunctionSpace(self._measure.function, self._spec.threshold)
        self._counts["pivot_distances"] += self._index.compared
        self._counts["compared_pairs"] += self._index.pairs
        self._index = self._index_of(dimension)
        self._kept: KeptPoints | None = None
        space = space_of(self._spec)
        if space is not None and can_keep(self._spec, space, dimension):
            given = (self._spec, self._store, space, self._measure, self._piece_bytes)
            self._kept = KeptPoints(*given)
            if not self._arrived:
                self._kept.begin()

    def _know_again(self) -> None:
        """Know what the store knows."""
        self._arrived = self._fact(_ARRIVED) or 0
        self._know(self._fact(_DIMENSION))
        self._is_ahead = False

    def _index_of(self, dimension: int | None) -> Index:
        spec, store = self._spec, self._store
        space: Space | None = space_of(spec) or self._promised
        if has_keys(spec):
            return Keyed(spec, store, self._arrived)
        if space is not None and spec.algorithm == "s3j" and (dimension or 0) > 0:
            return S3j(spec, store, space)
        if space is not None and can_use_grid(spec, dimension):
            return Grid(spec, store, space)
        pivots: Pivots | None = None
        if space is not None and spec.algorithm in ("auto", "pivots") and (dimension or 0) > 0:
            pivots = Pivots(spec, store, space, self._arrived)
        if space is not None and has_codes(spec) and (dimension or 0) >= LEAST_CODED:
            return Coded(spec, store, space, self._arrived, pivots)
        if pivots is not None:
            return pivots
        return Blocks(spec, store)

    def process(self, batch: Batch) -> Results:
        """Store a batch, and return its new results.

        Raises:
            InvalidArgumentError: The columns do not fit, a vector has another dimension or a null
                component and such batches are refused, or earlier results are not read. Nothing is
                stored.
        """
        self._spec.check_stream(batch.stream)
        call = f"process({batch.stream!r})"
        check_finished(call, self._unfinished)
        if self._is_ahead:
            self._know_again()
        self._is_ahead = True
        found = self._processed(batch, call)
        self._is_ahead = False
        self._unfinished = found
        return found

    def _processed(self, batch: Batch, call: str) -> Results:
        stream, spec = batch.stream, self._spec
        rows = as_batch(batch.rows, spec.streams[stream], call)
        keys = batch.computed
        if not isinstance(keys, pa.RecordBatch):
            keys = spec.key_batch(stream, rows)
        found = arrived(spec, stream, rows, self._dimension)
        if self._dimension is None and found.dimension is not None:
            self._know(found.dimension)
        is_stored = batch.role != Role.PROBE
        self.malformed_rows = None
        if spec.malformed == "side":
            self.malformed_rows = rows.filter(pa.array(found.is_malformed))
        malformed = int(found.is_malformed.sum())
        if malformed:
            kept = pa.array(~found.is_malformed)
            rows, keys = rows.filter(kept), keys.filter(kept) if keys.num_columns else keys
            found = found.kept()
        usable = found.is_usable.copy()
        for column in keys.columns:
            usable &= column.is_valid().to_numpy(zero_copy_only=False)
        if self._promised is not None and usable.any():
            self._check_promise(self._promised, stream, rows, usable)
        mine = Queries(rows, usable)
        if not usable.all():
            mine.cut(keys)
        else:
            mine.keys = keys
        if is_stored:
            mine.arrivals = self._arrived + np.arange(mine.rows.num_rows)
            self._append(stream, mine)
            self._counts["malformed_vectors"] += malformed
            self._counts["ignored_vectors"] += int((~found.is_usable).sum())
        if spec.is_anti:
            return Results(self._alone(stream, mine), schema=spec.output_schema)
        picks = self._pairs(stream, mine)
        made = (
            piece for picked in picks for piece in picked.made(self._gatherer, self._piece_bytes)
        )
        return Results(made, picks, spec.output_schema)

    def _check_promise(
        self, space: FunctionSpace, stream: str, rows: pa.RecordBatch, usable: Mask
    ) -> None:
        """Look at some of the rows before they are stored."""
        places = np.flatnonzero(usable)
        some = places[:: max(1, len(places) // SLICE_ROWS)]
        space.check(self._values(stream, rows.take(pa.array(some))))

    def _append(self, stream: str, mine: "Queries") -> None:
        count = mine.rows.num_rows
        if not count:
            return
        assert mine.arrivals is not None
        values = self._values(stream, mine.rows)
        times = None
        if self._spec.event_time is not None:
            times = microseconds(mine.rows.column(self._spec.event_time.columns[stream]))
        homes, orders = self._index.homes(values, mine.arrivals, times)
        places = placed(self._spec.place_schema, mine.keys, homes, orders)
        arrivals = pa.array(mine.arrivals, pa.int64())
        stored = pa.RecordBatch.from_arrays(
            [*mine.rows.columns, arrivals], schema=self._spec.stored[stream]
        )
        facts = {_ARRIVED: self._arrived + count}
        if self._dimension is not None:
            facts[_DIMENSION] = self._dimension
        # First: rows that are there without their numbers would be numbered again.
        writes: list[Sequence[Mutation]] = [[_fact_write(facts), *self._index.writes()]]
        sizes = mine.sizes + _ARRIVAL_BYTES
        for part in pieces_of(sizes, self._piece_bytes):
            beside = self._index.added(stream, values, stored, mine.keys, homes, part)
            own = Mutation(
                "append",
                stream,
                places.slice(part.start, part.stop - part.start),
                stored.slice(part.start, part.stop - part.start),
            )
            writes.append([*beside, own])
        keeping = [] if self._kept is None else [self._kept]
        write_all(self._store, WriteParts(lambda: writes), *keeping)
        self._arrived += count
        if self._kept is not None:
            self._kept.added(stream, stored, mine.keys, sizes)

    def _values(self, stream: str, rows: pa.RecordBatch) -> Any:
        return self._measure.values(rows.column(self._spec.columns[stream]))

    def _pairs(self, stream: str, mine: "Queries") -> Iterator[Picked]:
        """The results of rows as picks of them and of stored ones."""
        first = self._names[0]
        for part in mine.slices(self._piece_bytes):
            arrived = Stored(part.rows, None, part.sizes, common_size(part.sizes))
            for stored, places, partners, distances in self._close(stream, part):
                both = ((arrived, places), (stored, partners))
                if self._spec.is_self_join or stream != first:
                    both = both[::-1]
                batches, picked = [], []
                size = np.zeros(len(places), np.int64)
                for side, (rows, at) in zip(self._sides, both, strict=True):
                    if side.columns:
                        batches.append(rows.rows.select(side.columns))
                        picked.append(at.astype(np.int64))
                        size += side.sizes(rows, at)
                if self._spec.shows_distance:
                    batches.append(pa.RecordBatch.from_arrays([distances], schema=_DISTANCES))
                    picked.append(np.arange(len(places)))
                    size += 8
                yield Picked(batches, picked, size)

    def _alone(self, stream: str, mine: "Queries") -> Iterator[pa.RecordBatch]:
        """The rows that have no close row before them."""
        is_alone = np.ones(mine.all_rows.num_rows, np.bool_)
        usable = np.flatnonzero(mine.usable)
        first = 0
        for part in mine.slices(self._piece_bytes):
            for _, places, _, _ in self._close(stream, part):
                is_alone[usable[first + places]] = False
            first += part.rows.num_rows
        alone = mine.all_rows.filter(pa.array(is_alone)).select(self._spec.shown_columns[0])
        for piece in pieces_of(row_sizes(alone), self._piece_bytes):
            yield alone.slice(piece.start, piece.stop - piece.start)

    def _other(self, stream: str) -> str:
        return self._names[0] if stream == self._names[-1] else self._names[-1]

    def _close(self, stream: str, mine: "Queries") -> Iterator[Close]:
        """Stored rows, and the pairs of one of ``mine`` with one of them that are results."""
        other = self._other(stream)
        values = self._values(stream, mine.rows)
        kept = None if self._kept is None else self._kept.near(other, values, mine.keys)
        if kept is not None:
            yield from self._among_kept(stream, other, mine, values, kept)
            return
        found = self._index.near(other, values, mine.keys, self._piece_bytes, mine.arrivals)
        for groups, pieces in found:
            compared = _Compared(self._measure, values, groups)
            yield from self._compared(stream, other, mine, groups, pieces, compared)

    def _among_kept(
        self,
        stream: str,
        other: str,
        mine: "Queries",
        values: Any,
        kept: Iterator[tuple[Level, Iterator[tuple[Places, Places]]]],
    ) -> Iterator[Close]:
        """The same of rows that are kept in memory."""
        for level, pairs in kept:
            is_pair = self._filter(stream, mine, other, level.rows, level)
            stored = Stored(level.rows, level.values, level.sizes, level.width)
            for places, partners in pairs:
                wanted = is_pair(places, partners)
                if wanted is not None:
                    places, partners = places[wanted], partners[wanted]
                yield from self._verified(values, stored, places, partners)
        assert self._kept is not None
        self._counts["compared_pairs"] += self._kept.taken()

    def _compared(
        self,
        stream: str,
        other: str,
        mine: "Queries",
        groups: Groups,
        pieces: Iterator[Stretches],
        compared: "_Compared",
    ) -> Iterator[Close]:
        values = compared.values
        for piece in pieces:
            stored = Stored(piece.rows, compared.read(self._values(other, piece.rows)))
            is_pair = self._filter(stream, mine, other, piece.rows)
            for places, partners, known in self._gathered(piece, groups, compared, is_pair):
                if known == Known.CLOSE:
                    self._counts["close_pairs"] += len(places)
                    distances = _NO_DISTANCES
                    if self._needs_distances:
                        distances = self._measure.distances(values, places, stored.values, partners)
                    yield stored, places, partners, distances
                    continue
                yield from self._verified(values, stored, places, partners)

    def _verified(
        self, values: Any, stored: "Stored", places: Places, partners: Places
    ) -> Iterator[Close]:
        """Those of some candidates that are close."""
        self._counts["candidate_pairs"] += len(places)
        distances = self._measure.distances(values, places, stored.values, partners)
        close = np.flatnonzero(distances <= self._spec.threshold)
        self._counts["close_pairs"] += len(close)
        if len(close):
            yield stored, places[close], partners[close], distances[close]

    @property
    def _needs_distances(self) -> bool:
        return self._spec.shows_distance

    def _gathered(
        self,
        piece: Stretches,
        groups: Groups,
        compared: "_Compared",
        is_pair: "_PairFilter",
    ) -> Iterator[tuple[Places, Places, Known]]:
        """The candidates of a piece that are no results for no other reason than their distance,
        many at once; and pairs that are close."""
        kept: list[tuple[Places, Places]] = []
        count = 0
        for places, partners, known in pairs_of(piece, groups, compared):
            self._counts["compared_pairs"] += len(places) if known == Known.NOTHING else 0
            self._counts["certain_pairs"] += len(places) if known == Known.CLOSE else 0
            wanted = is_pair(places, partners)
            if wanted is not None:
                places, partners = places[wanted], partners[wanted]
            if known == Known.CLOSE:
                if len(places):
                    yield places, partners, known
                continue
            if len(places):
                kept.append((places, partners))
                count += len(places)
            if count >= _VERIFIED_PAIRS:
                yield *_joined(kept), Known.CANDIDATES
                kept, count = [], 0
        self._counts["compared_pairs"] += compared.taken()
        if kept:
            yield *_joined(kept), Known.CANDIDATES

    def _filter(
        self,
        stream: str,
        mine: "Queries",
        other: str,
        stored: pa.RecordBatch,
        level: Level | None = None,
    ) -> "_PairFilter":
        """Which pairs are no results for another reason than their distance. ``level``: what is
        known of the stored rows."""
        spec = self._spec
        found = _PairFilter()
        first = self._before if mine.arrivals is None else mine.arrivals[0]
        if spec.is_self_join and (level is None or level.last >= first):
            arrivals = stored.column(ARRIVAL).to_numpy(zero_copy_only=False)
            if mine.arrivals is not None:
                found.arrivals = (mine.arrivals, arrivals)
            elif (arrivals >= self._before).any():
                # Rows of this micro-batch, which lie in another bucket than mine.
                own = stored.select(spec.streams[other].names)
                if mine.hashes is None:
                    mine.hashes = content_hashes(mine.rows, self._codecs[stream])
                hashes = content_hashes(own, self._codecs[other])
                found.hashes = (mine.hashes, hashes, arrivals < self._before)
        if spec.event_time is not None and (spec.within_us is not None or spec.window is not None):
            columns = spec.event_time.columns
            found.times = (
                microseconds(mine.rows.column(columns[stream])),
                microseconds(stored.column(columns[other])) if level is None else level.times,
            )
            found.within_us, found.window = spec.within_us, spec.window
        return found


class _PairFilter:
    """Which pairs may be results, whatever their distance."""

    def __init__(self) -> None:
        self.arrivals: tuple[Numbers, Numbers] | None = None
        self.hashes: tuple[Any, Any, Mask] | None = None
        self.times: tuple[Numbers, Numbers] | None = None
        self.within_us: int | None = None
        self.window: TimeWindow | None = None

    def __call__(self, places: Places, partners: Places) -> Mask | None:
        """None: all."""
        found: Mask | None = None
        if self.arrivals is not None:
            found = self.arrivals[1][partners] < self.arrivals[0][places]
        if self.hashes is not None:
            mine, theirs, is_earlier = self.hashes
            found = is_earlier[partners] | is_greater(mine[places], theirs[partners])
        if self.times is not None:
            in_time = in_one_window(
                self.times[0][places], self.times[1][partners], self.within_us, self.window
            )
            found = in_time if found is None else found & in_time
        return found


def in_one_window(
    first: Numbers, second: Numbers, within_us: int | None, window: TimeWindow | None
) -> Mask:
    """Which pairs of times are at most so far apart, and lie in one window."""
    found = np.ones(len(first), np.bool_)
    if within_us is not None:
        found &= np.abs(first - second) <= within_us
    if window is not None:
        found &= window.hold_both(first, second)
    return found


class _Compared:
    """Compares members of groups with stored rows by tiles, which are made when they are first
    needed."""

    def __init__(self, measure: Measure, values: Any, groups: Groups) -> None:
        self._measure = measure
        self.values = values
        self._groups = groups
        self._panels: dict[int, Panels | None] = {}
        self._kept = 0
        self._pairs = 0
        self._stored: Any = None
        self._ready: Ready | None = None
        self._is_ready = False
        self._least = measure.least_pairs

    def read(self, stored: Any) -> Any:
        """Compare with these stored rows from here on; returns them."""
        self._stored, self._is_ready = stored, False
        return stored

    def is_dense(self, pairs: Numbers) -> Mask:
        """Whether tiles are the best way."""
        if self._least is None:
            return np.zeros(len(pairs), np.bool_)
        return np.asarray(pairs >= self._least)

    def __call__(
        self, group: int, first: int, last: int, part: slice
    ) -> Iterator[tuple[Places, Places]]:
        """Candidates among members of a group and a part of the stored rows."""
        if group not in self._panels:
            start, stop = self._groups.starts[group : group + 2]
            self._kept += int(stop - start)
            if self._kept > _MOST_KEPT:
                self._panels.clear()
                self._kept = int(stop - start)
            self._panels[group] = self._measure.panels(
                self.values[self._groups.members[start:stop]]
            )
        panels = self._panels[group]
        if not self._is_ready:
            self._ready, self._is_ready = self._measure.ready(self._stored), True
        self._pairs += (last - first) * (part.stop - part.start)
        if panels is not None and self._ready is not None:
            yield from panels.candidates(self._ready, part, first, last)
            return
        for places, partners in all_candidates(last - first, part.stop - part.start):
            yield places + np.int32(first), partners + np.int32(part.start)

    def taken(self) -> int:
        """Pairs that were compared since the last call."""
        found, self._pairs = self._pairs, 0
        return found


class Queries:
    """Rows that look for partners, with what stands beside them."""

    def __init__(self, rows: pa.RecordBatch, usable: Mask) -> None:
        self.all_rows = rows
        self.usable = usable
        self.rows = rows if usable.all() else rows.filter(pa.array(usable))
        self.keys: pa.RecordBatch
        #: Ascending.
        self.arrivals: Numbers | None = None
        self.hashes: Any = None

    @cached_property
    def sizes(self) -> Numbers:
        """The bytes of each usable row."""
        return row_sizes(self.rows)

    def cut(self, keys: pa.RecordBatch) -> None:
        """Set the keys of the usable rows."""
        self.keys = keys.filter(pa.array(self.usable)) if keys.num_columns else keys

    def slices(self, piece_bytes: int) -> Iterator["Queries"]:
        """The usable rows in slices of bounded size."""
        sizes = self.sizes
        most = _SLICE_PIECES * piece_bytes
        for part in pieces_of(np.maximum(sizes, -(-most // SLICE_ROWS)), most):
            length = part.stop - part.start
            found = Queries(self.rows.slice(part.start, length), np.ones(length, np.bool_))
            found.keys = self.keys.slice(part.start, length) if self.keys.num_columns else self.keys
            found.arrivals = None if self.arrivals is None else self.arrivals[part]
            found.sizes = sizes[part]
            yield found


class Stored(NamedTuple):
    """Some stored rows."""

    rows: pa.RecordBatch
    values: Any
    """What the measure compares."""
    sizes: Numbers | None = None
    """The bytes of each, if they are known."""
    width: int | None = None
    """The bytes of each, if all are known to have the same."""

    def sizes_of(self, places: Places) -> Numbers | int:
        """The bytes of some rows, most of which may not be among them."""
        if self.width is not None:
            return self.width
        if self.sizes is not None:
            return self.sizes[places]
        if 4 * len(places) > self.rows.num_rows:
            return row_sizes(self.rows)[places]
        used, back = np.unique(places, return_inverse=True)
        return row_sizes(self.rows.take(pa.array(used)))[back]


class _Side(NamedTuple):
    """What results have of one row of a pair."""

    columns: list[str]
    schema: pa.Schema
    is_whole: bool
    width: int | None
    """The bytes of each row, if all have the same."""

    @classmethod
    def of(cls, rows: pa.Schema, columns: Sequence[str]) -> "_Side":
        schema = pa.schema([rows.field(name) for name in columns])
        width = sizes_of(schema).width if columns else 0
        return cls(list(columns), schema, len(columns) == len(rows), width)

    def sizes(self, rows: "Stored", places: Places) -> Numbers | int:
        """The bytes of some rows in results."""
        if self.width is not None:
            return self.width
        if self.is_whole:
            return rows.sizes_of(places)
        return Stored(rows.rows.select(self.columns), None).sizes_of(places)


_NO_DISTANCES: Final = np.empty(0)
_ARRIVAL_BYTES: Final = sizes_of(pa.schema([(ARRIVAL, pa.int64())])).width or 0
_DISTANCES: Final = pa.schema([("distance", pa.float64())])


def _fact_write(facts: Mapping[str, int]) -> Mutation:
    names = pa.RecordBatch.from_arrays([pa.array(list(facts), pa.string())], schema=FACTS.key)
    values = pa.RecordBatch.from_arrays([pa.array(facts.values(), pa.int64())], schema=FACTS.rows)
    return Mutation("put", FACTS.name, names, values)


def _joined(pairs: list[tuple[Places, Places]]) -> tuple[Places, Places]:
    if len(pairs) == 1:
        return pairs[0]
    return np.concatenate([q for q, _ in pairs]), np.concatenate([x for _, x in pairs])
