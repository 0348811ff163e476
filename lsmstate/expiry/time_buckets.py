"""One stream with an expiry: the slots of its rows, which rows have expired, and its stored state.

The *slots* of a stream are streams of the store below, named ``name@0`` and so on:

- one for each time bucket of the ring,
- two for rows outside the ring: one is in use, and the other takes the rest when the first is
  emptied,
- one for rows without an event time, which never expire.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import RING_SLOTS, EventTimes, Expiry, TimeRing
from lsmstate.schema.entry_sizes import EntrySizes
from lsmstate.store import Mutation, StreamSchema
from lsmstate.store_base.slots import KEPT_SLOT, LANES, OUT_SLOTS, slot_names

#: Slot of a row that is not stored.
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class LaneState:
    """The stored state of a lane; a value.

    ``moving`` is the slot that is being emptied row by row. ``moved_rows`` is how many of its rows,
    in the order of iteration, have been moved.
    """

    ring: TimeRing
    out_slot: int = OUT_SLOTS[0]
    moving: int | None = None
    moved_rows: int = 0

    @property
    def out_is_behind(self) -> bool:
        """Whether rows outside the ring may have expired, or have a slot in the ring by now."""
        ring = self.ring
        if ring.out_least is None or ring.first is None:
            return False
        return ring.out_is_due or ring.out_least // ring.width < ring.first + RING_SLOTS


class Lane:
    """Schema, slot names and current state of one stream."""

    def __init__(self, stream: StreamSchema, expiry: Expiry) -> None:
        self.schema = stream
        self.codec = KeyCodec(stream.key)
        self.row_codec = RowCodec(stream.rows)
        self.sizes = EntrySizes(stream.rows, stream.key)
        self.names = slot_names(stream.name)
        self.times = EventTimes(stream.name, expiry, stream.rows)
        self.state = LaneState(TimeRing(self.times.life))
        self._column = expiry.column

    def copy(self) -> "Lane":
        """Return a lane that keeps the present state."""
        other = Lane.__new__(Lane)
        other.__dict__.update(self.__dict__)
        return other

    def readable(self) -> list[tuple[str, bool]]:
        """Return the slots to read, and whether some of their rows may have expired: first the rows
        that never expire, then those outside the ring, then the ring from its oldest bucket on."""
        ring = self.state.ring
        return [
            (self.names[KEPT_SLOT], False),
            (self.names[self.state.out_slot], ring.out_is_due),
            *((self.names[slot], due) for slot, due in ring.bucket_slots()),
        ]

    def visible(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows have not expired."""
        return ~self.state.ring.due(*self.times.of(rows))

    def placed(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], LaneState]:
        """Return the slot of each row (NOWHERE: it has expired), and the state that
        includes them."""
        ticks, known = self.times.of(rows)
        ring = self.state.ring.begun(ticks[known])
        places = np.where(ring.in_ring(ticks), ring.slots(ticks), self.state.out_slot)
        places[~known] = KEPT_SLOT
        places[ring.due(ticks, known)] = NOWHERE
        ring = ring.with_out(ticks[places == self.state.out_slot])
        return places, replace(self.state, ring=ring)

    def saved(self, state: LaneState) -> Mutation:
        """Return the write that stores a state."""
        ring = state.ring
        row = {
            "column": self._column,
            "life": ring.life,
            "first": ring.first,
            "horizon": ring.horizon,
            "out_least": ring.out_least,
            "out_slot": state.out_slot,
            "moving": state.moving,
            "moved_rows": state.moved_rows,
        }
        return Mutation(
            "put",
            LANES.name,
            pa.RecordBatch.from_pylist([{"stream": self.schema.name}], schema=LANES.key),
            pa.RecordBatch.from_pylist([row], schema=LANES.rows),
        )

    def adopt(self, kept: pa.RecordBatch) -> None:
        """Continue from the stored state (no row: a new stream). InvalidArgumentError if it was
        made with another expiry."""
        self.state = LaneState(TimeRing(self.times.life))
        for row in kept.to_pylist():
            if (row["column"], row["life"]) != (self._column, self.times.life):
                raise InvalidArgumentError(
                    f"stream {self.schema.name!r} was made with an expiry by {row['column']!r} "
                    f"after {row['life']} (in the column's unit), asked for: {self._column!r} "
                    f"after {self.times.life}; open it with the expiry it was made with"
                )
            ring = TimeRing(row["life"], row["first"], row["horizon"], row["out_least"])
            self.state = LaneState(ring, row["out_slot"], row["moving"], row["moved_rows"])
