"""Join-biclique: a row is stored in one bucket, and looks for partners in all of the other side.

- Of two streams each has buckets of its own, its *units*. A row is stored in one unit of its stream
  and probes all units of the other one. Nothing is copied, whatever the condition is.
- One stream that is joined with itself has all buckets. A row is stored in one and probes the rest.
- The unit follows from the row's content, so a repeated micro-batch stores it where it was.

Source: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015), section 3. The
paper chooses the unit at random, which a replay would not repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.protocols import Role, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash_router import NO_MARKS

#: Under which the units stand among what a checkpoint's later starts adopt.
UNITS: Final = "units"


@dataclass(frozen=True)
class BicliqueRouting:
    """Made by ``BicliqueRouting.of``."""

    units: Mapping[str, tuple[int, int]]
    """By stream its first bucket, and how many it has."""
    marks: pa.Schema = field(default=NO_MARKS, compare=False)

    @classmethod
    def of(cls, rows: Mapping[str, int], buckets: int) -> "BicliqueRouting":
        """Deal the buckets to the streams, in proportion to their rows.

        Args:
            rows: Rows of the one or two streams, in proportion.
            buckets: How many buckets there are.

        Raises:
            InvalidArgumentError: There are more than two streams, or fewer buckets than streams.
        """
        if not 1 <= len(rows) <= 2:
            raise InvalidArgumentError(
                f"{len(rows)} streams ({', '.join(rows)}): a join-biclique has one or two; give "
                "several streams a common key, or join them one after the other"
            )
        if buckets < len(rows):
            raise InvalidArgumentError(
                f"buckets={buckets!r}: each of the streams {', '.join(rows)} needs one of its own; "
                f"give at least {len(rows)}"
            )
        first, *others = rows
        if not others:
            return cls({first: (0, buckets)})
        share = rows[first] / max(1, sum(rows.values()))
        count = min(max(1, round(buckets * share)), buckets - 1)
        return cls({first: (0, count), others[0]: (count, buckets - count)})

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The units, which the first start fixes."""
        return {UNITS: {name: list(units) for name, units in self.units.items()}}

    def settled(self, buckets: int, adopted: Mapping[str, Any]) -> "BicliqueRouting":
        """The routing by the units that the first start fixed. InvalidArgumentError if they are
        more than the buckets."""
        found = {name: (first, count) for name, (first, count) in adopted[UNITS].items()}
        needed = sum(count for _, count in found.values())
        if needed > buckets:
            raise InvalidArgumentError(
                f"the units of the streams {', '.join(found)} need {needed} buckets, there are "
                f"{buckets}; give the number of buckets that the units were dealt from"
            )
        return replace(self, units=found)

    def router(
        self,
        stream: str,
        rows: pa.Schema,
        keys: pa.Schema,
        table: object = None,
    ) -> "BicliqueRouter":
        """The router of one stream."""
        return BicliqueRouter(self, stream, rows)


class BicliqueRouter:
    """The router of one stream of ``BicliqueRouting``."""

    def __init__(self, routing: BicliqueRouting, stream: str, rows: pa.Schema) -> None:
        self._first, self._count = routing.units[stream]
        others = [units for name, units in routing.units.items() if name != stream]
        self._probed = None if not others else np.arange(*_range(others[0]), dtype=np.int64)
        self._codec = RowCodec(rows)

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows. Cost: a copy of each row per unit that it probes."""
        places = content_hashes(rows, self._codec) % np.uint64(self._count)
        places = places.astype(np.int64)
        if self._probed is None:  # of one stream: all units but its own
            steps = np.arange(1, self._count, dtype=np.int64)
            probed = self._first + (places[:, None] + steps) % self._count
        else:
            probed = np.broadcast_to(self._probed, (len(places), len(self._probed)))
        buckets = np.concatenate([(self._first + places)[:, None], probed], axis=1)
        roles = np.full(buckets.shape, Role.PROBE, np.int8)
        roles[:, 0] = Role.STORE
        positions = np.repeat(np.arange(len(places), dtype=np.int64), buckets.shape[1])
        return Routed(positions, buckets.ravel(), roles.ravel())


def _range(units: tuple[int, int]) -> tuple[int, int]:
    first, count = units
    return first, first + count
