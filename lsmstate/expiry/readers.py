"""Reads of a state whose streams have an expiry, if only the state is known."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry.store import LaneReads
from lsmstate.expiry.time_buckets import Lane
from lsmstate.expiry_rules import EventTimes, Expiry
from lsmstate.store import StoreReader, StreamSchema
from lsmstate.store_base.slots import LANES, slot_names

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def expiring_reads(below: StoreReader) -> StoreReader:
    """Return a reader of the streams in ``below`` by their users' names, without expired rows. It
    belongs to ``below``, which must not be written to."""
    if LANES.name not in below.streams:
        return below
    streams: dict[str, StreamSchema] = {}
    lanes: dict[str, Lane] = {}
    for name, schema in below.streams.items():
        stream = name.rpartition("@")[0]
        if name == LANES.name or (stream in lanes and name in slot_names(stream)):
            continue
        if not below.streams.keys() >= set(slot_names(stream)):
            streams[name] = schema
            continue
        kept = below.get(LANES.name, (stream,))
        expiry = _expiry(schema.rows, kept)
        streams[stream] = replace(schema, name=stream, expiry=expiry)
        lanes[stream] = Lane(streams[stream], expiry)
        lanes[stream].adopt(kept)
    return LaneReads(streams, lanes, below)


def _expiry(rows: pa.Schema, kept: pa.RecordBatch) -> Expiry:
    """Return the expiry that the stream was opened with."""
    for row in kept.to_pylist():
        return Expiry(row["column"], _after(rows.field(row["column"]).type, row["life"]))
    # Nothing was written to the stream, so any expiry serves.
    for field in rows:
        expiry = Expiry(field.name, 0 if pa.types.is_integer(field.type) else timedelta(0))
        try:
            EventTimes("", expiry, rows)
        except InvalidArgumentError:
            continue
        return expiry
    raise AssertionError("a stream with an expiry has an event time")


def _after(kind: pa.DataType, life: int) -> timedelta | int:
    """Convert ticks of an event time to ``Expiry.after``."""
    if pa.types.is_integer(kind):
        return life
    if kind == pa.date32():
        return timedelta(days=life)
    if kind == pa.date64():
        return timedelta(milliseconds=life)
    if kind.unit == "ns":
        return timedelta(microseconds=life // 1000)
    return timedelta(microseconds=life * _MICROSECONDS[kind.unit])
