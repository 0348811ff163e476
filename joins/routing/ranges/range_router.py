"""Range routing: a row is stored in the unit of its range, and probes those its bounds reach.

- For two streams, or one with itself. The keys of a row are three columns: *value*, its own value
  of the range column; *low* and *high*, between which the other stream's values lie that it can
  match, both included. A null value or a low above high matches nothing. A null bound is none.
- Units are buckets, of which the first start fixes the number.
- Nothing is copied. A pair meets once: the later row finds the earlier one, in the one unit that
  stores it. So the layout may change from table to table, and no row moves.

Source: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015): one side stored,
the others probed. Ranges that change, and are pruned by what they hold, are ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.ranges.layout import Layout
from lsmstate.joins.routing.ranges.next_layout import next_layout
from lsmstate.joins.routing.ranges.positions import Bounded
from lsmstate.joins.routing.ranges.range_sample import EMPTY, Sample, SeenRanges
from lsmstate.joins.routing.ranges.range_table import Closed, Held, RangeTable, known_units


@dataclass(frozen=True)
class RangeRouting:
    """Made by ``RangeRouting.of``."""

    streams: tuple[str, ...]
    buckets: int = 1
    one_sided: frozenset[str] = frozenset()
    """Streams whose rows lack a bound, as a point does among intervals. It only says how the first
    table is made from rows of the other stream."""

    @classmethod
    def of(
        cls, streams: Sequence[str], buckets: int = 1, one_sided: Iterable[str] = ()
    ) -> "RangeRouting":
        """Check the streams. InvalidArgumentError unless they are one or two."""
        if not 1 <= len(streams) <= 2:
            raise InvalidArgumentError(
                f"{len(streams)} streams ({', '.join(streams)}): routing='ranges' is for one or "
                "two; leave it out, or join the streams one after the other"
            )
        return cls(tuple(streams), buckets, frozenset(one_sided))

    @property
    def adopted(self) -> Mapping[str, Any]:
        """Nothing: the number of buckets says how many units there are."""
        return {}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "RangeRouting":
        """The routing over that many buckets."""
        return replace(self, buckets=buckets)

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: RangeTable | None = None
    ) -> "RangeRouter":
        """The router of one stream under the table of a micro-batch."""
        return RangeRouter(self, stream, rows, table or self.initial_table)

    def keys_of(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        """The columns value, low and high of rows: the keys that stand beside them."""
        return keys

    @property
    def others(self) -> dict[str, tuple[str, ...]]:
        """By stream, those that it looks for matches in."""
        if len(self.streams) == 1:
            return {self.streams[0]: self.streams}
        return {name: tuple(s for s in self.streams if s != name) for name in self.streams}

    @property
    def makes_tables_alike(self) -> bool:
        """Yes: what is observed depends on the rows alone, and no sum on the order of its parts."""
        return True

    @property
    def initial_table(self) -> RangeTable:
        """Rows are dealt by their content, and probe all units."""
        return RangeTable(Layout(self.buckets))

    def sampled_table(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, micro_batch: int
    ) -> RangeTable:
        """The first table, from some rows of one stream."""
        bounded = Bounded.of(self.keys_of(stream, rows, keys))
        places = np.flatnonzero(bounded.matching())
        hashes = np.arange(len(places), dtype=np.uint64)
        sample = Sample(hashes, bounded.at(places), np.ones(len(places)))
        samples = {stream: sample}
        for other in self.others[stream]:
            # Of its rows no more is known than that they are there, and whether they have bounds.
            samples.setdefault(other, self._assumed(other, sample, stream))
        return RangeTable(next_layout(Layout(self.buckets), samples, self.others), micro_batch)

    def _assumed(self, other: str, sample: Sample, stream: str) -> Sample:
        """Rows of the other stream, where those of one are all that is known."""
        value, low, high = sample.rows
        if other in self.one_sided:
            low, high = np.full_like(value, -np.inf), np.full_like(value, np.inf)
        elif stream in self.one_sided and np.isfinite(value).all() and len(value):
            reach = float(np.ptp(value)) / self.buckets
            low, high = value - reach, value + reach
        return replace(sample, rows=Bounded(value, low, high))

    def next_table(
        self, table: RangeTable, observed: Sequence[SeenRanges], micro_batch: int
    ) -> RangeTable:
        """Cut anew if what was stored of late would be dealt better, and note what units hold."""
        closed = tuple(self._with_held(each, observed) for each in table.closed)
        samples = dict.fromkeys(self.streams, EMPTY)
        for each in sorted(observed, key=lambda seen: seen.bucket):
            for stream, sample in each.samples.items():
                samples[stream] = samples[stream].and_also(sample)
        layout = next_layout(table.layout, samples, self.others)
        here = replace(table, closed=closed)
        if layout == table.layout:
            return here
        unknown = dict.fromkeys(self.streams, (None,) * self.buckets)
        last = self._with_held(Closed(table.micro_batch, table.layout, unknown), observed)
        return here.closing(layout, micro_batch, last.held)

    def table_from_json(self, found: Mapping[str, Any]) -> RangeTable:
        """The inverse of ``RangeTable.to_json``."""
        return RangeTable.from_json(found)

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> SeenRanges:
        """The inverse of ``SeenRanges.to_json``."""
        return SeenRanges.from_json(bucket, found)

    def observer(
        self,
        bucket: int,
        table: RangeTable,
        kept: Mapping[str, Any] | None,
        *,
        is_last: bool,
        watermark_us: int | None = None,
    ) -> "RangeObserver":
        """Watch what a bucket stores in a micro-batch.

        Args:
            bucket: Its number.
            table: The table of the micro-batch.
            kept: What ``kept`` of the last observer of the bucket gave.
            is_last: Whether the next micro-batch has another table.
            watermark_us: Of no use here: ranges are no times.
        """
        return RangeObserver(self, bucket, table, kept or {}, is_last)

    @staticmethod
    def _with_held(closed: Closed, observed: Sequence[SeenRanges]) -> Closed:
        told = {each.bucket: each.held.get(closed.micro_batch, {}) for each in observed}
        return replace(closed, held=known_units(closed.held, told))


class RangeRouter:
    """The router of one stream of ``RangeRouting``."""

    def __init__(
        self, routing: RangeRouting, stream: str, rows: pa.Schema, table: RangeTable
    ) -> None:
        self._routing = routing
        self._stream = stream
        self._codec = RowCodec(rows)
        self._table = table

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows by their keys (value, low, high). Cost: some vector operations on an array of
        rows by units, for each layout in which a row of the batch may find a match."""
        bounded = Bounded.of(self._routing.keys_of(self._stream, rows, keys))
        places = np.flatnonzero(bounded.matching())
        mine = bounded.at(places)
        contents = None
        if not self._table.layout.edges:
            contents = content_hashes(rows.take(pa.array(places)), self._codec)
        own = self._table.layout.stored(self._stream, mine, contents)
        reached = np.zeros((len(places), self._table.layout.units), np.bool_)
        for other in self._routing.others[self._stream]:
            reached |= self._table.reached(other, mine)
        reached[np.arange(len(places)), own] = True
        found, buckets = np.nonzero(reached)
        roles = np.where(buckets == own[found], Role.STORE, Role.PROBE).astype(np.int8)
        return Routed(places[found], buckets.astype(np.int64), roles)


class RangeObserver:
    """What one bucket stores in one micro-batch; made by ``RangeRouting.observer``."""

    def __init__(
        self,
        routing: RangeRouting,
        bucket: int,
        table: RangeTable,
        kept: Mapping[str, Any],
        is_last: bool,
    ) -> None:
        before = SeenRanges.from_json(bucket, kept)
        known = {table.micro_batch, *(closed.micro_batch for closed in table.closed)}
        self._routing = routing
        self._bucket = bucket
        self._number = table.micro_batch
        self._held = {n: dict(held) for n, held in before.held.items() if n in known}
        self._is_last = is_last
        self._samples: dict[str, Sample] = {}
        self._rows: dict[str, int] = {}
        self._codecs: dict[str, RowCodec] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """None."""
        return {}

    def add(
        self,
        stream: str,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        role: Role = Role.STORE,
    ) -> None:
        """Note rows that are stored. Cost: a few vector operations, and before the next table a
        hash of each row."""
        bounded = Bounded.of(self._routing.keys_of(stream, rows, keys))
        held = self._held.setdefault(self._number, {})
        held[stream] = held.get(stream, Held()).and_also(Held.of(bounded))
        if self._is_last:
            codec = self._codecs.setdefault(stream, RowCodec(rows.schema))
            sample = Sample.of(content_hashes(rows, codec), bounded)
            known = self._samples.get(stream)
            self._samples[stream] = sample if known is None else known.and_also(sample).smallest()
            self._rows[stream] = self._rows.get(stream, 0) + rows.num_rows

    def kept(self) -> dict[str, Any]:
        """What the next observer of the bucket needs; commit it with the rows."""
        return SeenRanges(self._bucket, held=self._held).to_json()

    def observed(self) -> SeenRanges:
        """What the next table is made from."""
        samples = {s: sample.of_rows(self._rows[s]) for s, sample in self._samples.items()}
        return SeenRanges(self._bucket, samples, self._held)
