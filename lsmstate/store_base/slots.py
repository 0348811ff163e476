"""The slots of a stream with an expiry, as streams of the store below; see ``expiry.time_buckets``.

Pure functions convert between a user's stream and the streams of the store below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lsmstate.expiry_rules import RING_SLOTS, Expiry
from lsmstate.store import StreamSchema

OUT_SLOTS = (RING_SLOTS, RING_SLOTS + 1)
KEPT_SLOT = RING_SLOTS + 2
SLOTS = RING_SLOTS + 3
#: The stream that keeps the state of each lane: one row per stream with an expiry.
LANES = StreamSchema(
    "@expiry",
    pa.schema([("stream", pa.string())]),
    pa.schema(
        [
            ("column", pa.string()),
            ("life", pa.int64()),
            ("first", pa.int64()),
            ("horizon", pa.int64()),
            ("out_least", pa.int64()),
            ("out_slot", pa.int64()),
            ("moving", pa.int64()),
            ("moved_rows", pa.int64()),
        ]
    ),
)


def with_slots(streams: Sequence[StreamSchema]) -> list[StreamSchema]:
    """Return the streams of the store below: one per slot of a stream with an expiry, and LANES."""
    return [
        replace(stream, name=name, expiry=None)
        for stream in streams
        for name in ([stream.name] if stream.expiry is None else slot_names(stream.name))
    ] + [LANES]


def without_slots(
    streams: Mapping[str, StreamSchema], kept: Mapping[str, Mapping[str, Any]]
) -> list[StreamSchema]:
    """Inverse of ``with_slots``. ``kept`` is by stream its row of
    LANES. Of a lane that has none the expiry is not known, and there is no row: that of some
    column, whichever, serves."""
    found: dict[str, StreamSchema] = {}
    for schema in streams.values():
        name = schema.name.rpartition("@")[0]
        if schema.name == LANES.name:
            continue
        if not name or any(slot not in streams for slot in slot_names(name)):
            found[schema.name] = schema
        elif name not in found:
            found[name] = replace(schema, name=name, expiry=_expiry(schema.rows, kept.get(name)))
    return list(found.values())


def _expiry(rows: pa.Schema, kept: Mapping[str, Any] | None) -> Expiry:
    if kept is None:
        timed = next(f for f in rows if pa.types.is_temporal(f.type) or pa.types.is_integer(f.type))
        return Expiry.of_life(timed.name, 0, timed.type)
    return Expiry.of_life(kept["column"], kept["life"], rows.field(kept["column"]).type)


def slot_names(stream: str) -> list[str]:
    """Return the names of the slots, in order."""
    return [f"{stream}@{slot}" for slot in range(SLOTS)]
