"""A join-biclique whose sides have as many units as their load needs, for joins that forget.

- Each side has a number of buckets. The first of them are *active*: they store its rows.
- After a side has shrunk, its other units are still probed until their rows have expired. Nothing
  moves, in either direction.
- How many are active stands in the table of the micro-batch. So it changes between micro-batches,
  and a repetition of one stores its rows where they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.biclique import BicliqueRouter, BicliqueRouting
from lsmstate.joins.routing.hash_router import NO_MARKS
from lsmstate.joins.routing.scaling.two_phase import Group, TwoPhaseScaling
from lsmstate.schema.arrow_sizes import row_sizes

#: Periods of a window, of which a unit counts what it stores.
_PERIODS: Final = 10


@dataclass(frozen=True)
class Side:
    """The units of one stream."""

    group: Group
    probed: int
    """So many of them may hold rows."""


@dataclass(frozen=True)
class ScaledTable:
    """How many units store rows in some micro-batches, and how many are probed."""

    sides: Mapping[str, Side]

    @property
    def called(self) -> tuple[int, ...]:
        """None: rows say which buckets they need."""
        return ()

    def explain(self) -> str:
        """A line for each side."""
        return "\n".join(
            f"{name}: {side.group.units} units store rows, {side.probed} are probed"
            for name, side in self.sides.items()
        )

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        sides = {
            name: [side.group.units, side.group.wants, side.group.times, side.probed]
            for name, side in self.sides.items()
        }
        return {"sides": sides}


@dataclass(frozen=True)
class SeenLoad:
    """What one bucket stores."""

    bucket: int
    stored_bytes: Mapping[int, int] = field(default_factory=dict)
    """By period of event time."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.stored_bytes.values())

    def to_json(self) -> dict[str, Any]:
        """What is stored as JSON has it."""
        return {"bytes": [[period, size] for period, size in self.stored_bytes.items()]}

    @classmethod
    def from_json(cls, bucket: int, found: Mapping[str, Any]) -> "SeenLoad":
        """The inverse of ``to_json``."""
        return cls(bucket, dict(found.get("bytes", ())))


@dataclass(frozen=True)
class ScaledBiclique:
    """A routing of two streams with event times (``ObservingRouting``)."""

    #: Sizes of rows are summed.
    makes_tables_alike: ClassVar[bool] = True

    biclique: BicliqueRouting
    """All units that there are."""
    scaling: TwoPhaseScaling
    times: Mapping[str, str]
    """By stream the column of its event time."""
    kept_us: Mapping[str, int]
    """How long its rows are kept after that."""
    active: int = 1
    """Units that each side has at first."""
    marks: pa.Schema = field(default=NO_MARKS, compare=False)

    @property
    def adopted(self) -> Mapping[str, Any]:
        """All units."""
        return self.biclique.adopted

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "ScaledBiclique":
        """The routing by the units that the first start fixed."""
        return replace(self, biclique=self.biclique.settled(buckets, adopted))

    def router(
        self, stream: str, rows: pa.Schema, keys: pa.Schema, table: ScaledTable | None
    ) -> "ScaledRouter":
        """The router of one stream under the table of a micro-batch."""
        return ScaledRouter(self, stream, rows, table or self.initial_table)

    @property
    def initial_table(self) -> ScaledTable:
        """As many active units as asked for."""
        sides = {}
        for name, (_, count) in self.biclique.units.items():
            active = min(self.active, count)
            sides[name] = Side(Group(active), active)
        return ScaledTable(sides)

    def sampled_table(
        self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, micro_batch: int
    ) -> ScaledTable:
        """The first table: rows say nothing of the load to come."""
        return self.initial_table

    def next_table(
        self, table: ScaledTable, observed: Sequence[SeenLoad], micro_batch: int
    ) -> ScaledTable:
        """Decide for each side. One of whose units something is not known stays as it is."""
        told = {seen.bucket: seen.total for seen in observed}
        return ScaledTable({name: self._next(name, s, told) for name, s in table.sides.items()})

    def _next(self, stream: str, side: Side, told: Mapping[int, int]) -> Side:
        first, count = self.biclique.units[stream]
        stored = [told.get(first + unit) for unit in range(side.probed)]
        probed = side.probed
        while probed > side.group.units and stored[probed - 1] == 0:
            probed -= 1
        known = [size for size in stored if size is not None]
        if len(known) < len(stored):
            return Side(side.group, probed)
        group = self.scaling.next(side.group, known, count)
        return Side(group, max(probed, group.units))

    def table_from_json(self, found: Mapping[str, Any]) -> ScaledTable:
        """The inverse of ``ScaledTable.to_json``."""
        return ScaledTable(
            {
                name: Side(Group(units, wants, times), probed)
                for name, (units, wants, times, probed) in found["sides"].items()
            }
        )

    def observed_from_json(self, bucket: int, found: Mapping[str, Any]) -> SeenLoad:
        """The inverse of ``SeenLoad.to_json``."""
        return SeenLoad.from_json(bucket, found)

    def observer(
        self,
        bucket: int,
        table: ScaledTable,
        kept: Mapping[str, Any] | None,
        *,
        is_last: bool,
        watermark_us: int | None,
    ) -> "LoadObserver":
        """Count what a bucket stores, without what has expired by the watermark."""
        found = LoadObserver(self, SeenLoad.from_json(bucket, kept or {}))
        if watermark_us is not None:
            found.forget(watermark_us)
        return found


class ScaledRouter:
    """The router of one stream of ``ScaledBiclique``."""

    def __init__(
        self, routing: ScaledBiclique, stream: str, rows: pa.Schema, table: ScaledTable
    ) -> None:
        self._active = {name: side.group.units for name, side in table.sides.items()}
        units = {
            name: (first, self._active[name] if name == stream else table.sides[name].probed)
            for name, (first, _) in routing.biclique.units.items()
        }
        self._router = BicliqueRouter(replace(routing.biclique, units=units), stream, rows)

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Store rows in active units, and probe all that may hold rows."""
        return self._router.route(rows, keys)


class LoadObserver:
    """What one bucket stores, by period, so that it can be forgotten as the rows are."""

    def __init__(self, routing: ScaledBiclique, before: SeenLoad) -> None:
        self._routing = routing
        self._bucket = before.bucket
        self._stored = dict(before.stored_bytes)

    @property
    def counts(self) -> Mapping[str, int]:
        """Nothing."""
        return {}

    def add(self, stream: str, rows: pa.RecordBatch, keys: pa.RecordBatch, role: Role) -> None:
        """Note rows that are stored. Cost: a few vector operations."""
        sizes = row_sizes(rows)
        times = pc.fill_null(rows.column(self._routing.times[stream]).cast(pa.int64()), 0)
        periods = times.to_numpy(zero_copy_only=False) // self._period_us
        for period in np.unique(periods).tolist():
            more = int(sizes[periods == period].sum())
            self._stored[period] = self._stored.get(period, 0) + more

    def forget(self, watermark_us: int) -> None:
        """Forget the periods whose rows have all expired by a watermark."""
        kept = max(self._routing.kept_us.values())
        due = (watermark_us - kept) // self._period_us
        self._stored = {n: size for n, size in self._stored.items() if n >= due}

    def kept(self) -> dict[str, Any]:
        """What the next observer of the bucket needs; commit it with the rows."""
        return self.observed().to_json()

    def observed(self) -> SeenLoad:
        """What the next table is made from."""
        return SeenLoad(self._bucket, self._stored)

    @property
    def _period_us(self) -> int:
        return max(1, max(self._routing.kept_us.values()) // _PERIODS)
