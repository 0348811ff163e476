"""A table of worksets: which bucket stores what is nearest to a pivot, and who held it before.

- Pivots are only added, and end when their rows are forgotten. A row is stored with the nearest of
  the pivots of its table, in the bucket of that workset, or in one of its shards.
- No row moves when a table changes. What a bucket still holds of a workset is *held*: its event
  times and the distances to the pivot, once the bucket has told them.
- A row looks for partners in every bucket that may hold one. A pivot that is more than twice the
  threshold further than another one of its time has none.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lsmstate.joins.local.similarity.vectors import Matrix
from lsmstate.joins.routing.balancing import Places

Numbers = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float64]

EVER: Final = 1 << 62
#: Stands for a pivot: rows that were dealt by their content before there were any.
DEALT: Final = -1


class Held(NamedTuple):
    """What one bucket holds of one workset."""

    earliest: int = -EVER
    latest: int = EVER
    """Event times; of what is not known the widest."""
    farthest: float = np.inf
    """Distance from the pivot."""

    def and_also(self, other: "Held") -> "Held":
        """Both."""
        return Held(
            min(self.earliest, other.earliest),
            max(self.latest, other.latest),
            max(self.farthest, other.farthest),
        )


ANYTHING: Final = Held()


@dataclass(frozen=True)
class WorksetTable:
    """What rows are routed by in some micro-batches."""

    buckets: int
    points: Matrix = field(default_factory=lambda: np.empty((0, 0)), compare=False)
    """The pivots as points of the space; none: rows are dealt by their content."""
    ids: tuple[int, ...] = ()
    since: tuple[int, ...] = ()
    """Of each pivot the first micro-batch in which rows were placed by it."""
    places: Places = ()
    """Of each workset the buckets of its shards."""
    held: Mapping[tuple[int, int], Held] = field(default_factory=dict)
    """By pivot's id and bucket, what is held by tables of before."""
    usual: float = np.inf
    """How far nine in ten rows are from their pivot."""
    micro_batch: int = 0
    next_id: int = 0

    @property
    def called(self) -> tuple[int, ...]:
        """None: rows say which buckets they need."""
        return ()

    def nearest(self, distances: Distances) -> Numbers:
        """Of rows by their distances from the pivots, the place of the nearest."""
        return np.asarray(distances.argmin(axis=1), np.int64)

    def stored(self, nearest: Numbers, contents: npt.NDArray[np.uint64]) -> Numbers:
        """The bucket that stores each row. Equal rows have one."""
        counts = np.array([len(own) for own in self.places])
        flat = np.concatenate([np.array(own) for own in self.places])
        begins = np.cumsum(counts) - counts
        shard = (contents % counts[nearest].astype(np.uint64)).astype(np.int64)
        found: Numbers = flat[begins[nearest] + shard]
        return found

    def reached(
        self, distances: Distances, reach: float, times: Numbers | None, apart_us: int
    ) -> npt.NDArray[np.bool_]:
        """For each row and bucket, whether the bucket may store a partner.

        Args:
            distances: Of the rows from the pivots.
            reach: How far partners are apart at most, with room for rounding.
            times: Event times of the rows.
            apart_us: How far those of a pair are apart at most.
        """
        found = np.zeros((len(distances), self.buckets), np.bool_)
        if not len(self.ids):
            found[:] = True
            return found
        since = np.array(self.since)
        least = np.empty_like(distances)
        for micro_batch in np.unique(since):
            known = since <= micro_batch
            own = distances[:, known].min(axis=1)[:, None] + 2 * reach
            least[:, since == micro_batch] = own
        near = distances <= least
        for place, own in enumerate(self.places):
            found[:, list(own)] |= near[:, place, None]
        at = {pivot: place for place, pivot in enumerate(self.ids)}
        for (pivot, bucket), held in self.held.items():
            may = np.ones(len(distances), np.bool_)
            if pivot != DEALT:
                may = near[:, at[pivot]] & (distances[:, at[pivot]] - reach <= held.farthest)
            if times is not None:
                may &= (times <= held.latest + apart_us) & (times >= held.earliest - apart_us)
            found[:, bucket] |= may
        return found

    def replaced(self, places: Places, micro_batch: int) -> "WorksetTable":
        """The table with other places from a micro-batch on."""
        held = dict(self.held)
        for pivot, before, after in zip(self.ids, self.places, places, strict=True):
            for bucket in set(before) - set(after):
                held[pivot, bucket] = ANYTHING
        return replace(self, places=places, held=held, micro_batch=micro_batch)

    def with_pivots(
        self, points: Matrix, places: Places, usual: float, micro_batch: int
    ) -> "WorksetTable":
        """The table with more pivots from a micro-batch on."""
        count = len(points)
        held = dict(self.held)
        if not len(self.ids):
            held |= {(DEALT, bucket): ANYTHING for bucket in range(self.buckets)}
        every = np.concatenate([self.points, points]) if len(self.ids) else points
        return replace(
            self,
            points=every,
            ids=(*self.ids, *range(self.next_id, self.next_id + count)),
            since=(*self.since, *([micro_batch] * count)),
            places=(*self.places, *places),
            usual=usual,
            held=held,
            micro_batch=micro_batch,
            next_id=self.next_id + count,
        )

    def with_held(self, told: Mapping[tuple[int, int], Held], telling: set[int]) -> "WorksetTable":
        """With what buckets told of what they hold. One that tells nothing of a workset has nothing
        of it."""
        held = {}
        for (pivot, bucket), known in self.held.items():
            if (pivot, bucket) in told:
                held[pivot, bucket] = told[pivot, bucket]
            elif bucket not in telling:
                held[pivot, bucket] = known
        return replace(self, held=held)

    def without(self, horizon_us: int, latest: Mapping[int, int]) -> "WorksetTable":
        """Without what only holds rows of event times up to a horizon. ``latest``: by pivot the
        last event time of a row, of pivots about which every bucket has told."""
        held = {at: known for at, known in self.held.items() if known.latest > horizon_us}
        used = {pivot for pivot, _ in held}
        kept = [
            place
            for place, pivot in enumerate(self.ids)
            if pivot in used or latest.get(pivot, EVER) > horizon_us
        ]
        if len(kept) == len(self.ids) or not kept:
            return replace(self, held=held)
        return replace(
            self,
            points=self.points[kept],
            ids=tuple(self.ids[place] for place in kept),
            since=tuple(self.since[place] for place in kept),
            places=tuple(self.places[place] for place in kept),
            held=held,
        )

    def explain(self) -> str:
        """How many worksets there are, and where."""
        if not len(self.ids):
            return "rows are dealt to all buckets"
        split = sum(len(own) > 1 for own in self.places)
        lines = [f"{len(self.ids)} worksets in {self.buckets} buckets, {split} of them in shards"]
        if self.held:
            lines.append(f"worksets that an earlier table put elsewhere: {len(self.held)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The table as JSON has it."""
        points = np.ascontiguousarray(self.points, "<f8")
        return {
            "buckets": self.buckets,
            "width": points.shape[1],
            "points": base64.b64encode(points.tobytes()).decode(),
            "ids": list(self.ids),
            "since": list(self.since),
            "places": [list(own) for own in self.places],
            "held": [[*at, known.earliest, known.latest, str(known.farthest)]
                     for at, known in self.held.items()],
            "usual": str(self.usual),
            "micro_batch": self.micro_batch,
            "next_id": self.next_id,
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``."""
        points = np.frombuffer(base64.b64decode(found["points"]), "<f8")
        return cls(
            found["buckets"],
            points.reshape(-1, found["width"]) if found["width"] else np.empty((0, 0)),
            tuple(found["ids"]),
            tuple(found["since"]),
            tuple(map(tuple, found["places"])),
            {(p, b): Held(e, la, float(far)) for p, b, e, la, far in found["held"]},
            float(found["usual"]),
            found["micro_batch"],
            found["next_id"],
        )


def least_loaded(loads: Distances, weights: Sequence[float]) -> Places:
    """Places of new worksets: the heaviest first, each where the load is least."""
    full = loads.astype(np.float64).copy()
    found = [0] * len(weights)
    for at in np.argsort(-np.array(weights), kind="stable"):
        bucket = int(full.argmin())
        found[int(at)] = bucket
        full[bucket] += weights[at]
    return tuple((bucket,) for bucket in found)
