"""Routing of a similarity join by worksets: near rows lie in one bucket, and load is balanced.

- A row is stored in the bucket of its nearest pivot, and looks for partners in every bucket that
  may hold one. Nothing is copied.
- Pivots come from the first rows, and more from rows that lie far from all. A table is made from
  what the buckets have seen: how many rows of each workset came, and which ones they hold.
- Worksets are placed by load, the largest ones in shards (``routing/balancing.py``). New rows go by
  the new table; stored rows stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.parts.time_checks import microseconds
from lsmstate.joins.local.similarity.spaces import Space, longest, space_of
from lsmstate.joins.local.similarity.vectors import Matrix, arrived, matrix, vector_type
from lsmstate.joins.local.similarity.workset_table import (
    DEALT,
    EVER,
    Held,
    WorksetTable,
    least_loaded,
)
from lsmstate.joins.protocols import Numbers, Role, Routed
from lsmstate.joins.routing.balancing import balanced, bucket_loads
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.specs.similarity import SimilaritySpec

#: Pivots of the first table for each bucket, and numbers in all of them, at most.
_PIVOTS_PER_BUCKET: Final = 16
_MOST_PIVOTS: Final = 400
_MOST_NUMBERS: Final = 1 << 16
#: Rows for each pivot that is made.
_ROWS_PER_PIVOT: Final = 4
#: New pivots where more than a part of the rows lies so many times further than usual.
_DRIFT: Final = 1.5
_FAR_PART: Final = 0.1
#: Rows of each bucket from which new pivots are made.
_SAMPLED: Final = 64
#: A table stays unless the largest load is so much more than the average.
_UNEVEN: Final = 1.1
#: How much of the rows of before still counts when a new table is made.
_FADING: Final = 0.5


@dataclass(frozen=True)
class SeenWorksets:
    """What one bucket has seen."""

    bucket: int
    new: Mapping[int, int] = field(default_factory=dict)
    """By pivot, rows that came since the last table."""
    stored: Mapping[int, float] = field(default_factory=dict)
    """By pivot, rows of before, older ones counting less."""
    held: Mapping[int, Held] = field(default_factory=dict)
    """By pivot, what is stored here."""
    sample: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    """Points that came, some of them."""
    watermark_us: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What was seen as JSON has it."""
        return {
            "new": [[p, n] for p, n in self.new.items()],
            "stored": [[p, n] for p, n in self.stored.items()],
            "held": [[p, h.earliest, h.latest, str(h.farthest)] for p, h in self.held.items()],
            "sample": self.sample.tolist(),
            "watermark": self.watermark_us,
        }

    @classmethod
    def from_json(cls, bucket: int, found: Mapping[str, Any]) -> "SeenWorksets":
        """The inverse of ``to_json``."""
        sample = np.array(found.get("sample", []), np.float64)
        return cls(
            bucket,
            dict(found.get("new", [])),
            dict(found.get("stored", [])),
            {p: Held(e, la, float(far)) for p, e, la, far in found.get("held", [])},
            sample if sample.ndim == 2 else np.empty((0, 0)),
            found.get("watermark"),
        )


@dataclass(frozen=True)
class WorksetRouting:
    """Made by ``WorksetRouting.of``."""

    spec: SimilaritySpec
    buckets: int = 1

    @classmethod
    def of(cls, spec: SimilaritySpec, buckets: int = 1) -> "WorksetRouting":
        """Route the rows of a join. InvalidArgumentError unless it gives pairs, compares vectors by
        a metric that is known here, and has no equal columns."""
        if space_of(spec) is None or len(spec.key_schema) or spec.is_anti:
            raise InvalidArgumentError(
                f"routing='worksets' is for pairs of vectors without by, and this join has "
                f"metric={spec.metric!r}, how={spec.how!r} and {len(spec.key_schema)} equal "
                "columns; leave routing out"
            )
        return cls(spec, buckets)

    @property
    def adopted(self) -> Mapping[str, Any]:
        """Nothing: the number of buckets says how many there are."""
        return {}

    @property
    def marks(self) -> pa.Schema:
        """None."""
        return NO_MARKS

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "WorksetRouting":
        """The routing over that many buckets."""
        return replace(self, buckets=buckets)

    @property
    def initial_table(self) -> WorksetTable:
        """Rows are dealt by their content, and look into all buckets."""
        return WorksetTable(self.buckets)

    @property
    def space(self) -> Space:
        """In which the triangle inequality holds."""
        found = space_of(self.spec)
        assert found is not None
        return found

    def points_of(
        self, stream: str, rows: pa.RecordBatch, table: WorksetTable
    ) -> tuple[Numbers, Matrix]:
        """The rows that can match, and their vectors as points. InvalidArgumentError for a vector
        of another dimension than those before."""
        known = self._dimension(table)
        found = arrived(self.spec, stream, rows, known)
        places = np.flatnonzero(found.is_usable)
        if found.dimension is None or not len(places):
            return places, np.empty((0, 0))
        column = rows.column(self.spec.columns[stream]).take(pa.array(places))
        values = matrix(column, found.dimension, vector_type(self.spec))
        return places, self.space.points(values)

    def _dimension(self, table: WorksetTable) -> int | None:
        if not len(table.ids):
            return None
        return 2 if self.spec.metric == "haversine" else int(table.points.shape[1])

    def distances(self, points: Matrix, table: WorksetTable) -> Matrix:
        """Of points from the pivots."""
        if not len(points):
            return np.empty((0, len(table.ids)))
        return self.space.distances(points, table.points)

    def reach(self, points: Matrix, table: WorksetTable) -> float:
        """How far partners are apart at most, with room for rounding."""
        most = max(longest(points), longest(table.points))
        return self.space.reach + 2 * self.space.slack(
            2 * most + self.space.reach, points.shape[1] if len(points) else 0
        )

    def times_of(self, stream: str, rows: pa.RecordBatch, places: Numbers) -> Numbers | None:
        """The event times of rows, if pairs are bounded in time."""
        timing = self.spec.event_time
        if timing is None:
            return None
        return microseconds(rows.column(timing.columns[stream]))[places]

    @property
    def apart_us(self) -> int:
        """How far the event times of a pair are apart at most."""
        timing = self.spec.event_time
        kept = [] if timing is None else [k for k in timing.kept_us.values() if k is not None]
        return max(kept, default=EVER >> 1)

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: WorksetTable | None = None
    ) -> "WorksetRouter":
        """The router of one stream under the table of a micro-batch."""
        return WorksetRouter(self, stream, rows, table or self.initial_table)

    def sampled_table(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, micro_batch: int
    ) -> WorksetTable:
        """The first table, from some rows of one stream."""
        table = self.initial_table
        _, points = self.points_of(stream, rows, table)
        wanted = self._wanted(points)
        if wanted < 2:
            return replace(table, micro_batch=micro_batch)
        pivots = _some(points, wanted)
        distances = self.space.distances(points, pivots)
        homes = distances.argmin(axis=1)
        counts = np.bincount(homes, minlength=len(pivots)).astype(np.float64)
        loads = counts * counts
        usual = float(np.quantile(distances.min(axis=1), 0.9))
        places = least_loaded(np.zeros(self.buckets), loads.tolist())
        made = table.with_pivots(pivots, places, usual, micro_batch)
        # It is made before any row is stored.
        return replace(made, held={}, places=balanced(loads, places, self.buckets))

    def _wanted(self, points: Matrix) -> int:
        if not len(points):
            return 0
        most = min(_PIVOTS_PER_BUCKET * self.buckets, _MOST_PIVOTS)
        most = min(most, max(2 * self.buckets, _MOST_NUMBERS // points.shape[1]))
        return int(min(most, len(points) // _ROWS_PER_PIVOT))

    def next_table(
        self, table: WorksetTable, observed: Sequence[SeenWorksets], micro_batch: int
    ) -> WorksetTable:
        """Balance what came of late, add pivots where rows lie far, and note what buckets hold."""
        seen = sorted(observed, key=lambda each: each.bucket)
        told = {(pivot, s.bucket): held for s in seen for pivot, held in s.held.items()}
        table = table.with_held(told, {each.bucket for each in seen})
        table = self._without_old(table, seen)
        at = {pivot: place for place, pivot in enumerate(table.ids)}
        new, stored = np.zeros(len(table.ids)), np.zeros(len(table.ids))
        for each in seen:
            for counts, target in ((each.new, new), (each.stored, stored)):
                for pivot, count in counts.items():
                    if pivot in at:
                        target[at[pivot]] += count
        loads = new * (stored + new / 2)
        samples = [s.sample for s in seen if len(s.sample)]
        points = np.concatenate(samples) if samples else np.empty((0, 0))
        table, loads = self._with_new(table, points, loads, float(new.sum()), micro_batch)
        if not len(table.ids) or not loads.sum():
            return table
        full = bucket_loads(loads, table.places, self.buckets)
        if full.max() <= _UNEVEN * full.mean():
            return table
        places = balanced(loads, table.places, self.buckets)
        return table if places == table.places else table.replaced(places, micro_batch)

    def _without_old(self, table: WorksetTable, seen: Sequence[SeenWorksets]) -> WorksetTable:
        marks = [each.watermark_us for each in seen if each.watermark_us is not None]
        if not marks or self.spec.event_time is None:
            return table
        latest: dict[int, int] = {}
        for each in seen:
            for pivot, held in each.held.items():
                latest[pivot] = max(latest.get(pivot, -EVER), held.latest)
        telling = {each.bucket for each in seen}
        for pivot, own in zip(table.ids, table.places, strict=True):
            if not set(own) <= telling:
                latest[pivot] = EVER
        return table.without(max(marks) - self.apart_us, latest)

    def _with_new(
        self, table: WorksetTable, points: Matrix, loads: Any, came: float, micro_batch: int
    ) -> tuple[WorksetTable, Any]:
        """With pivots among the points that lie far from all there are."""
        wanted = self._wanted(points)
        if len(table.ids):
            if not len(points) or len(table.ids) >= 4 * _MOST_PIVOTS:
                return table, loads
            apart = self.distances(points, table).min(axis=1)
            is_far = apart > _DRIFT * table.usual
            if is_far.mean() <= _FAR_PART:
                return table, loads
            wanted = max(1, min(wanted, int(is_far.sum()) // _ROWS_PER_PIVOT))
            far = points[is_far]
        else:
            far = points
        if not len(far) or (not len(table.ids) and wanted < 2):
            return table, loads
        pivots = _some(far, wanted)
        distances = self.space.distances(far, pivots)
        counts = np.bincount(distances.argmin(axis=1), minlength=len(pivots)).astype(np.float64)
        # The rows that these stand for are taken to come again.
        counts *= came / max(1, len(points))
        weights = counts * counts
        usual = float(np.quantile(distances.min(axis=1), 0.9))
        usual = usual if not np.isfinite(table.usual) else min(usual, table.usual)
        before = np.zeros(self.buckets)
        if len(table.ids):
            before = bucket_loads(loads, table.places, self.buckets)
        places = least_loaded(before, weights.tolist())
        made = table.with_pivots(pivots, places, max(usual, 1e-300), micro_batch)
        return made, np.append(loads, weights)

    def table_from_json(self, found: Mapping[str, Any]) -> WorksetTable:
        """The inverse of ``WorksetTable.to_json``."""
        return WorksetTable.from_json(found)

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> SeenWorksets:
        """The inverse of ``SeenWorksets.to_json``."""
        return SeenWorksets.from_json(bucket, found)

    def observer(
        self,
        bucket: int,
        table: WorksetTable,
        kept: Mapping[str, Any] | None,
        *,
        is_last: bool,
        watermark_us: int | None = None,
    ) -> "WorksetObserver":
        """Watch what a bucket stores in a micro-batch."""
        before = SeenWorksets.from_json(bucket, kept or {})
        return WorksetObserver(self, bucket, table, before, is_last, watermark_us)


class WorksetRouter:
    """The router of one stream of ``WorksetRouting``."""

    def __init__(
        self, routing: WorksetRouting, stream: str, rows: pa.Schema, table: WorksetTable
    ) -> None:
        self._routing = routing
        self._stream = stream
        self._codec = RowCodec(rows)
        self._table = table

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows. Those that can match nothing go to one bucket, which counts them. Cost: the
        distances from the pivots, and a hash of each row."""
        table, routing = self._table, self._routing
        places, points = routing.points_of(self._stream, rows, table)
        contents = content_hashes(rows, self._codec)
        own = (contents % np.uint64(table.buckets)).astype(np.int64)
        reached = np.zeros((rows.num_rows, table.buckets), np.bool_)
        if not len(table.ids):
            reached[places] = True
        elif len(places):
            distances = routing.distances(points, table)
            own[places] = table.stored(table.nearest(distances), contents[places])
            times = routing.times_of(self._stream, rows, places)
            reached[places] = table.reached(
                distances, routing.reach(points, table), times, routing.apart_us
            )
        reached[np.arange(rows.num_rows), own] = True
        found, buckets = np.nonzero(reached)
        roles = np.where(buckets == own[found], Role.STORE, Role.PROBE).astype(np.int8)
        return Routed(found, buckets.astype(np.int64), roles)


class WorksetObserver:
    """What one bucket stores in one micro-batch; made by ``WorksetRouting.observer``."""

    def __init__(
        self,
        routing: WorksetRouting,
        bucket: int,
        table: WorksetTable,
        before: SeenWorksets,
        is_last: bool,
        watermark_us: int | None,
    ) -> None:
        self._routing = routing
        self._bucket = bucket
        self._table = table
        known = {DEALT, *table.ids}
        self._new = {p: n for p, n in before.new.items() if p in known}
        self._stored = {p: n for p, n in before.stored.items() if p in known}
        self._held = {p: h for p, h in before.held.items() if p in known}
        self._is_last = is_last
        self._watermark_us = watermark_us
        self._sample: dict[int, Matrix] = {}
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
        """Note rows that are stored. Cost: the distances from the pivots."""
        places, points = self._routing.points_of(stream, rows, self._table)
        if not len(places):
            return
        if self._is_last:
            codec = self._codecs.setdefault(stream, RowCodec(rows.schema))
            contents = content_hashes(rows.take(pa.array(places)), codec)
            for at in np.argsort(contents)[:_SAMPLED]:
                self._sample[int(contents[at])] = points[at]
            kept = sorted(self._sample)[:_SAMPLED]
            self._sample = {content: self._sample[content] for content in kept}
        pivots = np.full(len(places), DEALT)
        orders = np.full(len(places), np.inf)
        if len(self._table.ids):
            distances = self._routing.distances(points, self._table)
            nearest = self._table.nearest(distances)
            pivots = np.array(self._table.ids)[nearest]
            orders = distances[np.arange(len(nearest)), nearest]
        times = self._routing.times_of(stream, rows, places)
        for pivot in np.unique(pivots).tolist():
            mine = pivots == pivot
            self._new[pivot] = self._new.get(pivot, 0) + int(mine.sum())
            first, last = -EVER, EVER
            if times is not None:
                first, last = int(times[mine].min()), int(times[mine].max())
            held = Held(first, last, float(orders[mine].max()))
            known = self._held.get(pivot)
            self._held[pivot] = held if known is None else known.and_also(held)

    def kept(self) -> dict[str, Any]:
        """What the next observer of the bucket needs; commit it with the rows."""
        new, stored = self._new, self._stored
        if self._is_last:
            stored = {p: _FADING * stored.get(p, 0.0) + new.get(p, 0) for p in {*new, *stored}}
            stored = {p: n for p, n in stored.items() if n >= 1}
            new = {}
        return SeenWorksets(self._bucket, new, stored, self._held).to_json()

    def observed(self) -> SeenWorksets:
        """What the next table is made from."""
        sample = np.stack(list(self._sample.values())) if self._sample else np.empty((0, 0))
        return SeenWorksets(
            self._bucket, self._new, self._stored, self._held, sample, self._watermark_us
        )


def _some(points: Matrix, count: int) -> Matrix:
    """Some of the points, no two equal."""
    chosen = points[np.linspace(0, len(points) - 1, min(count, len(points))).astype(np.int64)]
    return np.unique(chosen, axis=0)
