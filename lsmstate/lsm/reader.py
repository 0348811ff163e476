"""Reads of an LsmStore: probes and scans of runs and memtables.

These are the store's current ones, until the next write, or those of a snapshot, until it is
closed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.entries.entry_source import EntrySource
from lsmstate.cython_ext.iterators.backward_iter import BackwardMemtableSource
from lsmstate.cython_ext.iterators.end_walk import EndWalk
from lsmstate.cython_ext.iterators.key_lookup import Lookup
from lsmstate.cython_ext.iterators.merging_iter import MergingSource
from lsmstate.cython_ext.iterators.range_walk import RangeWalk
from lsmstate.cython_ext.iterators.row_fetch import Cursor
from lsmstate.cython_ext.iterators.scanner import Scanner
from lsmstate.cython_ext.iterators.zone_pruning import ZonePruner
from lsmstate.cython_ext.keys.encoded_ranges import EncodedRanges
from lsmstate.cython_ext.keys.key_codec import KeyBatch, KeyCodec
from lsmstate.cython_ext.keys.key_decode import KeyDecoder
from lsmstate.cython_ext.memory.read_budget import check_room
from lsmstate.cython_ext.memtable.memtable import Memtable, Retained
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import CorruptionError
from lsmstate.lsm.decoded_checks import find_damaged_row
from lsmstate.lsm.retractions import LiveRows, RetractedProbe, pieces_of
from lsmstate.lsm.table_cache import FilePin, table_cache
from lsmstate.lsm.version import Run, hold_hidden
from lsmstate.process.memory_budget import ProcessMemory
from lsmstate.stats import ProbeRecorder, StoreStats
from lsmstate.store import Entries, Matches, Positions, Probe, StreamSchema
from lsmstate.store_base.checks import check_piece_bytes, checked_positions, encoded_keys
from lsmstate.store_base.guard import Access, Stepwise
from lsmstate.store_base.key_parts import MANY_KEYS, probe_bytes
from lsmstate.store_base.key_range import KeyRange
from lsmstate.store_base.range_reads import EndPortion, KeyPortion


class Tiers(NamedTuple):
    """What a read visits: runs, then memtables, each oldest first."""

    runs: tuple[Run, ...]
    memtables: tuple[Memtable, ...]

    def may_hold(self, number: int) -> bool:
        """Test whether there may be keys of a stream with this number or a higher one; False is
        certain."""
        return any(table.tree_count > number for table in self.memtables) or hold_hidden(
            self.runs, number
        )

    def may_delete(self, streams: int) -> bool:
        """Test whether memtables may hold deletions or retractions, or rows that they remove."""
        return bool(self.memtables) and (
            any(table.deletes for table in self.memtables) or self.may_hold(streams)
        )


def hidden_number(number: int, streams: Sized) -> int:
    """Return the number of the hidden stream that holds a stream's retractions."""
    return len(streams) + number


class TierHold:
    """Keeps what a snapshot reads: memtables, and files, which are not deleted."""

    def __init__(self) -> None:
        self._retained = Retained(())
        self._pins: list[FilePin] = []

    def take(self, tiers: Tiers, pins: list[FilePin]) -> None:
        """Keep these. The hold is already registered with the store, which releases it when it is
        closed."""
        self._pins = pins
        self._retained = Retained(tiers.memtables)

    @property
    def memtables(self) -> list[Memtable]:
        return self._retained.tables

    def release(self) -> None:
        """Release everything. A second call does nothing."""
        self._retained.release()
        self._pins.clear()


class TierHolds:
    """The holds of one store's snapshots."""

    def __init__(self, directory: str, memory: ProcessMemory) -> None:
        self._directory = directory
        self._tables = table_cache(memory)
        self._known: WeakSet[TierHold] = WeakSet()

    def hold(self, tiers: Tiers) -> TierHold:
        files = [file for run in tiers.runs for file in run.files]
        hold = TierHold()
        self._known.add(hold)
        hold.take(tiers, self._tables.pin(self._directory, files))
        return hold

    def close(self) -> None:
        """Release all holds, also those that an interrupt kept from becoming a snapshot's."""
        for hold in list(self._known):
            hold.release()

    def nbytes_beside(self, own: tuple[Memtable, ...]) -> int:
        """Return the bytes of held memtables that are not among these."""
        known = {id(table) for table in own}
        held = {id(table): table for hold in self._known for table in hold.memtables}
        return sum(table.nbytes for place, table in held.items() if place not in known)


class LsmProbe:
    """Locations of the rows of some keys; a ``store.Probe``."""

    def __init__(self, lookup: Lookup, access: Access) -> None:
        self._lookup: Lookup | None = lookup
        self._access = access
        self.counts: npt.NDArray[np.int64]
        self.row_bytes: npt.NDArray[np.int64]
        self.counts, self.row_bytes = lookup.count()
        access.hold(self)

    def let_go(self) -> None:
        """Release files and memory."""
        self._lookup = None

    def fetch(self, positions: Positions, max_bytes: int) -> Iterator[Matches]:
        """Read the rows of some of the keys, in pieces."""
        check_piece_bytes(max_bytes)
        asked = checked_positions(self.counts, positions)
        with self._access():
            assert self._lookup is not None, "the store is open"
            cursor = Cursor(self._lookup, asked)
        pieces = iter(partial(cursor.next_piece, max_bytes), None)
        return (Matches(*piece) for piece in Stepwise(self._access, pieces))


class LsmReader:
    """Reads the streams of one store. ``tiers`` returns what to read, at each read."""

    def __init__(
        self,
        directory: str,
        streams: Mapping[str, StreamSchema],
        key_codecs: Mapping[str, KeyCodec],
        row_codecs: Mapping[str, RowCodec],
        memory: ProcessMemory,
        tiers: Callable[[], Tiers],
    ) -> None:
        self._tiers = tiers
        self._directory = directory
        self._streams = streams
        self._numbers = {name: number for number, name in enumerate(streams)}
        self._key_codecs = key_codecs
        self._row_codecs = row_codecs
        self._budget = memory.budget
        self._tables = table_cache(memory)
        self.probed = ProbeRecorder()

    def probe(
        self,
        access: Access,
        stream: str,
        keys: pa.RecordBatch | KeyBatch,
        positions: Positions | None,
    ) -> Probe:
        """Look up keys without reading a row."""
        tiers = self._tiers()
        if not isinstance(keys, KeyBatch) and keys.num_rows >= MANY_KEYS:
            check_room(self._budget, probe_bytes(keys), keys.num_rows)
        encoded = encoded_keys(self._streams[stream], self._key_codecs[stream], keys)
        asked_for = None if positions is None else checked_positions(encoded, positions)
        lookup = self._lookup(tiers, stream, self._numbers[stream], encoded, asked_for)
        if encoded is not keys:
            lookup.own_keys()
        asked_keys = encoded.n_valid if asked_for is None else len(asked_for)
        self.probed.add(asked_keys, *lookup.counters())
        return self._counted(access, tiers, stream, lookup, encoded, asked_for)

    def _counted(
        self,
        access: Access,
        tiers: Tiers,
        stream: str,
        lookup: Lookup,
        keys: KeyBatch,
        positions: Positions | None,
    ) -> Probe:
        """Return the probe of a lookup; where there may be retractions, they are looked up too."""
        hidden = hidden_number(self._numbers[stream], self._streams)
        if not tiers.may_hold(hidden):
            return LsmProbe(lookup, access)
        retracted = self._lookup(tiers, stream, hidden, keys, positions)
        codec = self._row_codecs[stream]
        return RetractedProbe(lookup, retracted, codec, self._budget, access)

    def _lookup(
        self,
        tiers: Tiers,
        stream: str,
        number: int,
        keys: KeyBatch,
        positions: Positions | None,
    ) -> Lookup:
        """Look up keys in a stream or in its hidden stream."""
        lookup = Lookup(
            keys, number, positions, self._row_codecs[stream], self._budget, len(tiers.runs)
        )
        asked = lookup.key_range()
        if asked is not None:
            low, high = asked
            for run in tiers.runs:
                files = [f for f in run.files if f.max_key >= low and f.min_key <= high]
                lookup.delete_ranges(run.deleted)
                lookup.search_run([self._tables.open(self._directory, file) for file in files])
            for table in tiers.memtables:
                lookup.delete_ranges(table.deleted)
                lookup.search_memtable(table)
        lookup.end_search()
        return lookup

    def scan(self, access: Access, stream: str, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read all live rows of a stream."""
        if self._may_have_retractions(stream):
            entries = self.iterate(access, stream, KeyRange(), max_bytes, reverse=False)
            return (piece.rows for piece in entries)
        return _pieces(self._scanner(stream, KeyRange()), access, max_bytes)

    def iterate(
        self, access: Access, stream: str, wanted: KeyRange, max_bytes: int, *, reverse: bool
    ) -> Iterator[Entries]:
        """Read the rows of a key range."""
        decoder = KeyDecoder(self._streams[stream].key)
        scanner = self._scanner(stream, wanted, reverse=reverse, decoder=decoder)
        if self._may_have_retractions(stream):
            return Stepwise(access, self._live(stream, scanner, max_bytes))
        return Stepwise(access, _entries(scanner, max_bytes))

    def range_keys(
        self, access: Access, stream: str, ranges: EncodedRanges
    ) -> Iterator[KeyPortion]:
        """Find the keys in ranges by a walk over each run and each memtable."""
        return Stepwise(access, self._portions(access, stream, ranges))

    def _portions(self, access: Access, stream: str, ranges: EncodedRanges) -> Iterator[KeyPortion]:
        codec = self._row_codecs[stream]
        walk = RangeWalk(ranges, self._numbers[stream], codec, self._budget)
        pruner = ZonePruner(ranges, self._budget) if ranges.zones else None
        tiers = self._tiers()
        is_last = False
        while not is_last:
            keys = self._walked(walk, tiers)
            lookup = Lookup(keys, self._numbers[stream], None, codec, self._budget, len(tiers.runs))
            lookup.own_keys()
            for at, run in enumerate(tiers.runs):
                lookup.delete_ranges(run.deleted)
                walk.give_run(at, lookup)
            for at, table in enumerate(tiers.memtables):
                lookup.delete_ranges(table.deleted)
                walk.give_memtable(at, table, lookup)
            walk.give_files(lookup)
            lookup.end_search()
            is_last = walk.end()
            if pruner is not None:
                self.probed.blocks_spared += pruner.prune(lookup, keys, is_last)
            probe = self._counted(access, tiers, stream, lookup, keys, None)
            yield KeyPortion(keys, probe, is_last)

    def range_ends(
        self, access: Access, stream: str, ranges: EncodedRanges, *, is_last: bool
    ) -> Iterator[EndPortion]:
        """Find the last or first key of each range by searches in each run and each memtable."""
        return Stepwise(access, self._ends(access, stream, ranges, is_last=is_last))

    def _ends(
        self, access: Access, stream: str, ranges: EncodedRanges, *, is_last: bool
    ) -> Iterator[EndPortion]:
        number, codec = self._numbers[stream], self._row_codecs[stream]
        walk = EndWalk(ranges, number, self._budget, is_last)
        runs, memtables = self._tiers()
        while (asked := walk.begin(len(runs), len(memtables))) is not None:
            low, high = asked
            # The largest comes first: it has most of the ends, and the others are then asked for
            # better ones only.
            for at in sorted(range(len(runs)), key=lambda at: -runs[at].rows):
                files = [f for f in runs[at].files if f.max_key >= low and f.min_key < high]
                tables = [self._tables.open(self._directory, file) for file in files]
                walk.walk_run(at, tables, [file.min_key for file in files])
            for at, table in enumerate(memtables):
                walk.walk_memtable(at, table)
            keys = walk.keys()
            lookup = Lookup(keys, number, None, codec, self._budget, len(runs))
            lookup.own_keys()
            for at, run in enumerate(runs):
                lookup.delete_ranges(run.deleted)
                walk.give_run(at, lookup)
            for at, table in enumerate(memtables):
                lookup.delete_ranges(table.deleted)
                walk.give_memtable(at, table, lookup)
            walk.give_files(lookup)
            lookup.end_search()
            rows, places, left = walk.end()
            probe = self._counted(access, Tiers(runs, memtables), stream, lookup, keys, None)
            yield EndPortion(rows, places, keys, probe, left)

    def _walked(self, walk: RangeWalk, tiers: Tiers) -> KeyBatch:
        """Walk all tiers for one portion; return its keys."""
        runs, memtables = tiers
        walk.begin(len(runs), len(memtables))
        asked = walk.key_range()
        if asked is not None:
            low, high = asked
            # Tiers are taken to be alike, so each gets a share by its rows. The largest comes
            # first: if it ends the portion, the others stop there.
            least = walk.most_keys // (4 * (len(runs) + len(memtables) + 1))
            rows = sum(run.rows for run in runs) + sum(table.rows for table in memtables)
            share = walk.most_keys / max(1, rows)
            for at in sorted(range(len(runs)), key=lambda at: -runs[at].rows):
                files = [f for f in runs[at].files if f.max_key >= low and f.min_key < high]
                tables = [self._tables.open(self._directory, file) for file in files]
                walk.walk_run(at, tables, max(least, int(share * runs[at].rows)))
            for at, table in enumerate(memtables):
                walk.walk_memtable(at, table, max(least, int(share * table.rows)))
        return walk.keys()

    def _may_have_retractions(self, stream: str) -> bool:
        return self._tiers().may_hold(hidden_number(self._numbers[stream], self._streams))

    def _live(self, stream: str, scanner: Scanner, max_bytes: int) -> Iterator[Entries]:
        """Yield the scanner's pieces without retracted rows."""
        known: list[bytes] = []
        live_rows: LiveRows | None = None
        for rows in iter(partial(scanner.next_piece, max_bytes), None):
            keys = scanner.keys_of_piece()
            names = self._key_codecs[stream].encode(keys).to_pylist()
            last = known[-1:]
            positions, found = _grouped(names, last)
            carried = int(np.searchsorted(positions, len(last)))
            live = np.ones(len(names), dtype=np.bool_)
            if live_rows is not None:  # the last key continues in this piece
                places = np.full(carried, len(known) - 1, dtype=np.int64)
                live[:carried] = live_rows.of(places, rows.slice(0, carried))
            if carried < len(names):
                known = found[len(last) :]
                live_rows = self._live_rows(stream, known)
                places = positions[carried:] - len(last)
                live[carried:] = live_rows.of(places, rows.slice(carried))
            if live.any():
                mask = pa.array(live)
                yield Entries(keys.filter(mask), rows.filter(mask))

    def _live_rows(self, stream: str, names: list[bytes]) -> LiveRows:
        """Return the LiveRows of these encoded keys, by position."""
        number = self._numbers[stream]
        tiers = self._tiers()

        def read_again(place: int) -> Iterator[tuple[Positions, pa.RecordBatch]]:
            lookup = self._lookup(tiers, stream, number, KeyBatch.from_bytes([names[place]]), None)
            lookup.count()
            return pieces_of(lookup, np.zeros(1, dtype=np.int64))

        hidden = hidden_number(number, self._streams)
        return LiveRows(
            self._lookup(tiers, stream, hidden, KeyBatch.from_bytes([*names]), None),
            read_again,
            np.arange(len(names)),
            self._row_codecs[stream],
            self._budget,
        )

    def stats(self) -> StoreStats:
        """Return the counters of what is read here; memory is that of the process."""
        runs, memtables = self._tiers()
        return StoreStats(
            memory=self._budget.usage(),
            peak_memory_bytes=self._budget.peak_bytes,
            disk_bytes=sum(run.size for run in runs),
            spilled_bytes=0,
            counters={
                "probed_keys": self.probed.keys,
                "runs": len(runs),
                "files": sum(len(run.files) for run in runs),
                "rows": sum(r.rows for r in runs) + sum(table.rows for table in memtables),
            },
            memory_limit_bytes=self._budget.limit,
            filters=self.probed.filters(),
            probes=self.probed.probes(),
        )

    def find_damage(self) -> CorruptionError | None:
        """Return the error of the first row or key that does not decode, or None. Cost: all files
        are read."""
        tables = (
            partial(self._tables.open, self._directory, file)
            for run in self._tiers().runs
            for file in run.files
        )
        return find_damaged_row(tables, list(self._streams.values()), self._budget)

    def _scanner(
        self,
        stream: str,
        wanted: KeyRange,
        *,
        reverse: bool = False,
        decoder: KeyDecoder | None = None,
    ) -> Scanner:
        tiers = self._tiers()
        low, high = wanted.in_stream(self._numbers[stream])
        sources: list[EntrySource] = []
        for run in tiers.runs:
            files = [
                f for f in run.files if f.max_key >= low and (high is None or f.min_key < high)
            ]
            sources.append(
                self._tables.source(
                    self._directory, files, run.deleted, scanning=True, reverse=reverse
                )
            )
        for table in tiers.memtables:
            sources.append(BackwardMemtableSource(table) if reverse else table.source())
        return Scanner(
            MergingSource(sources, reverse),
            low,
            high,
            self._row_codecs[stream],
            self._budget,
            reverse,
            decoder,
        )


def _pieces(scanner: Scanner, access: Access, max_bytes: int) -> Iterator[pa.RecordBatch]:
    return Stepwise(access, iter(partial(scanner.next_piece, max_bytes), None))


def _entries(scanner: Scanner, max_bytes: int) -> Iterator[Entries]:
    for rows in iter(partial(scanner.next_piece, max_bytes), None):
        yield Entries(scanner.keys_of_piece(), rows)


def _grouped(
    names: Sequence[bytes | None], last: list[bytes]
) -> tuple[npt.NDArray[np.int64], list[bytes]]:
    """Return the number of each key, equal adjacent keys sharing one, and the distinct keys.
    ``last`` are keys before them."""
    found = [*last]
    positions = np.empty(len(names), dtype=np.int64)
    for place, name in enumerate(names):
        assert name is not None, "stored keys hold no null"
        if not found or name != found[-1]:
            found.append(name)
        positions[place] = len(found) - 1
    return positions, found
