"""Join-biclique: a row is stored in one bucket, and looks for partners in all of the other side.

- Of two streams each has buckets of its own, its *units*. A row is stored in one unit of its stream
  and probes all units of the other one. Nothing is copied, whatever the condition is.
- One stream that is joined with itself has all buckets. A row is stored in one and probes the rest.
- The unit follows from the row's content, so a repeated micro-batch stores it where it was.
- Where the streams have a value that is equal in every result, the units of each side form groups
  (*ContRand*). The hash of the value says the group, and the content says the unit inside. A row
  probes one group of the other side.

Source: Lin et al., *Scalable distributed stream join processing* (SIGMOD 2015), section 3. The
paper chooses the unit at random, which a replay would not repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_parts import KeyPart, own_column
from lsmstate.joins.protocols import Numbers, Role, Routed
from lsmstate.joins.routing.content import content_hashes
from lsmstate.joins.routing.hash_router import NO_MARKS

#: Under which the units, and the groups, stand among what a checkpoint's later starts adopt.
UNITS: Final = "units"
GROUPS: Final = "groups"
#: Units of a group, where the caller does not say how many groups there are.
_IN_A_GROUP: Final = 2


@dataclass(frozen=True)
class BicliqueRouting:
    """Made by ``BicliqueRouting.of``."""

    units: Mapping[str, tuple[int, int]]
    """By stream its first bucket, and how many it has."""
    parts: Mapping[str, KeyPart] = field(default_factory=dict)
    """By stream the value that is equal in every result; none: any unit may hold a partner."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """By stream how many groups its units form."""
    marks: pa.Schema = field(default=NO_MARKS, compare=False)

    @classmethod
    def of(
        cls,
        rows: Mapping[str, int],
        buckets: int,
        parts: Mapping[str, KeyPart] | None = None,
        groups: Mapping[str, int] | None = None,
    ) -> "BicliqueRouting":
        """Deal the buckets to the streams, in proportion to their rows.

        Args:
            rows: Rows of the one or two streams, in proportion.
            buckets: How many buckets there are.
            parts: By stream a value that is equal in every result.
            groups: With ``parts``, how many groups each stream's units form; default: groups of two
                units.

        Raises:
            InvalidArgumentError: There are more than two streams, fewer buckets than streams, or
                more groups than units.
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
        units = {first: (0, count), others[0]: (count, buckets - count)}
        if parts is None:
            return cls(units)
        if groups is None:
            groups = {name: max(1, of // _IN_A_GROUP) for name, (_, of) in units.items()}
        for name, (_, of) in units.items():
            if not 1 <= groups[name] <= of:
                raise InvalidArgumentError(
                    f"groups[{name!r}]={groups[name]!r}: the stream has {of} units; give 1 to {of}"
                )
        return cls(units, dict(parts), dict(groups))

    def messages(self, rows: Mapping[str, int]) -> float:
        """The buckets that a row is sent to, on average over streams of so many rows."""
        sent = 0.0
        for name, count in rows.items():
            (other,) = [each for each in self.units if each != name] or [name]
            units = self.units[other][1]
            # One stream alone has all units, of which a row is stored in one and probes the rest.
            probed = units - 1 if other == name else units / self.groups.get(other, 1)
            sent += count * (1 + probed)
        return sent / max(1, sum(rows.values()))

    @property
    def adopted(self) -> Mapping[str, Any]:
        """The units and their groups, which the first start fixes."""
        found: dict[str, Any] = {UNITS: {name: list(units) for name, units in self.units.items()}}
        return {**found, GROUPS: dict(self.groups)} if self.groups else found

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
        return replace(self, units=found, groups=adopted.get(GROUPS, {}))

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
        self._codec = RowCodec(rows)
        others = [name for name in routing.units if name != stream]
        self._probed = None if not others else np.arange(*_range(routing.units[others[0]]))
        #: The first unit of each group, and the end, of both sides.
        self._groups: tuple[Numbers, Numbers] | None = None
        if routing.groups and others:
            self._part = routing.parts[stream]
            self._keys = KeyCodec(pa.schema([("k", self._part.type)]))
            own, other = ((routing.units[n], routing.groups[n]) for n in (stream, others[0]))
            self._groups = (_starts(*own), _starts(*other))

    def route(self, rows: pa.RecordBatch, keys: pa.RecordBatch) -> Routed:
        """Route rows. Those whose equal value is null go nowhere. Cost: a copy of each row per unit
        that it probes."""
        if self._groups is not None:
            return self._route_in_groups(rows, *self._groups)
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

    def _route_in_groups(self, rows: pa.RecordBatch, own: Numbers, other: Numbers) -> Routed:
        values = self._part.values(own_column(rows), rows.num_rows)
        encoded = self._keys.encode(pa.record_batch([values], ["k"]))
        places = np.flatnonzero(encoded.valid)
        hashes = encoded.hashes[places]
        contents = content_hashes(rows.take(pa.array(places)), self._codec)
        mine, theirs = ((hashes % np.uint64(len(g) - 1)).astype(np.int64) for g in (own, other))
        size = (own[mine + 1] - own[mine]).astype(np.uint64)
        stored = own[mine] + (contents % size).astype(np.int64)
        counts = other[theirs + 1] - other[theirs] + 1
        positions = np.repeat(np.arange(len(places)), counts)
        step = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        is_own = step == 0
        buckets = np.where(is_own, stored[positions], other[theirs[positions]] + step - 1)
        roles = np.where(is_own, Role.STORE, Role.PROBE).astype(np.int8)
        return Routed(places[positions], buckets, roles)


def _starts(units: tuple[int, int], groups: int) -> Numbers:
    """Where the groups of units begin, which are about as large, and where the last one ends."""
    first, count = units
    return first + np.arange(groups + 1, dtype=np.int64) * count // groups


def _range(units: tuple[int, int]) -> tuple[int, int]:
    first, count = units
    return first, first + count
