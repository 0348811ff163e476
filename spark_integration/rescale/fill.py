"""Fill one new bucket of a rescale from the original buckets whose rows it takes."""

from collections.abc import Container, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lsmstate.joins.specs.event_time import WATERMARK
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.remote.bucket import DurableBucket
from lsmstate.spark_integration.joins.late_rows import keeps_late_rows
from lsmstate.spark_integration.rescale.places import Places, keeper_of
from lsmstate.state_location import StatePlace, open_bucket
from lsmstate.store import MultimapStore, StreamSchema
from lsmstate.store_base.slots import LANES, without_slots

_ATTEMPT: Final = "rescale"


@dataclass(frozen=True)
class Contents:
    """What all buckets of a state share: their streams, and how far event time has come."""

    streams: tuple[StreamSchema, ...]
    horizons: Mapping[str, int]
    """By stream with expiry, the watermark in the column's unit, where there was one."""
    watermark: pa.RecordBatch | None
    """Of a join that forgets, its newest row; see lsmstate.joins.specs.event_time.WATERMARK."""

    @classmethod
    def of(cls, place: StatePlace, pointers: Mapping[int, str]) -> "Contents":
        """Read them from the buckets. Buckets may have seen different watermarks; rows that are due
        by the latest one are needed nowhere. Cost: a few small reads per bucket."""
        raw: Mapping[str, StreamSchema] = {}
        lanes: dict[str, Mapping[str, Any]] = {}
        horizons: dict[str, int] = {}
        watermarks: list[pa.RecordBatch] = []
        for bucket, pointer in pointers.items():
            with closing(open_bucket(place, bucket, pointer)) as store:
                raw = store.streams
                for found in store.iterate(LANES.name) if LANES.name in raw else ():
                    for key, row in zip(
                        found.keys.to_pylist(), found.rows.to_pylist(), strict=True
                    ):
                        name = key["stream"]
                        lanes[name] = row
                        if row["horizon"] is not None:
                            time = row["horizon"] + row["life"]
                            horizons[name] = max(time, horizons.get(name, time))
                if raw.get(WATERMARK.name) == WATERMARK:
                    watermarks += store.scan(WATERMARK.name)
        latest = max(watermarks, key=lambda row: row["watermark_us"][0].as_py(), default=None)
        return cls(tuple(without_slots(raw, lanes)), horizons, latest)

    @property
    def keyed(self) -> list[StreamSchema]:
        """The streams whose rows lie where their keys say."""
        return [s for s in self.streams if s != WATERMARK and not keeps_late_rows(s)]

    @property
    def late(self) -> list[StreamSchema]:
        """The streams of late rows, which may lie in any bucket."""
        return [stream for stream in self.streams if keeps_late_rows(stream)]


def fill(
    state: StatePlace,
    plan: Mapping[str, Any],
    contents: Contents,
    number: int,
    places: Places,
    options: Options,
) -> dict[str, Any]:
    """Write the new bucket with this number, and return its record.

    Rows come in key order; rows of one key keep their order in an original bucket.

    Returns:
        The record of the bucket: the pointer it begins with (None if there was nothing to read),
        its rows, and per original bucket and stream how many rows that bucket owns and how many
        were taken.

    Cost:
        Memory of two stores.
    """
    ids = plan["original buckets"]
    old = [place for place in places.sources(number) if str(ids[place]) in plan["original"]]
    if not old:
        return {"pointer": None, "rows": 0, "read": []}
    bucket = state.bucket(plan["bucket_ids"][number])
    read: list[tuple[int, str, int, int]] = []
    with closing(_opened(bucket, contents.streams, None, plan["batch"], options)) as target:
        _set_time(target, contents)
        for place in old:
            source = state.bucket(ids[place])
            pointer = plan["original"][str(ids[place])]
            with closing(
                _opened(source, contents.streams, pointer, plan["batch"], options)
            ) as store:
                _set_time(store, contents)
                for stream in contents.keyed:
                    owned = taken = 0
                    for found in store.iterate(stream.name):
                        mine = places.taken(stream, found, place, number)
                        positions = pa.array(mine.positions)
                        rows = found.rows.take(positions)
                        taken += target.append(stream.name, rows, found.keys.take(positions))
                        owned += mine.owned
                    read.append((place, stream.name, owned, taken))
                for stream in contents.late:
                    is_keeper = keeper_of(place, places, plan["buckets"]) == number
                    owned = taken = 0
                    for found in store.iterate(stream.name):
                        if is_keeper:
                            taken += target.append(stream.name, found.rows, found.keys)
                        owned += found.rows.num_rows
                    read.append((place, stream.name, owned, taken))
        pointer = target.commit()
    state.files.force()
    return {"pointer": pointer, "rows": sum(taken for *_, taken in read), "read": read}


def misplaced(
    records: Iterable[Mapping[str, Any]], places: Places, late: Container[str] = ()
) -> str | None:
    """What is wrong with the records of all new buckets, if a row was lost or doubled; otherwise
    None. ``late``: names of the streams of late rows, which are never copied."""
    owned: dict[tuple[int, str], int] = {}
    taken: dict[tuple[int, str], int] = {}
    for record in records:
        for place, stream, rows, some in record["read"]:
            bucket = place, stream
            if owned.setdefault(bucket, rows) != rows:
                return f"bucket {place} was read twice with {owned[bucket]} and {rows} rows"
            taken[bucket] = taken.get(bucket, 0) + some
    for (place, stream), rows in owned.items():
        expected = rows if stream in late else rows * places.copies(stream)
        if taken[place, stream] != expected:
            return (
                f"of stream {stream!r} in bucket {place}, {taken[place, stream]} rows were "
                f"written instead of {expected}"
            )
    return None


def _set_time(store: MultimapStore, contents: Contents) -> None:
    """Hide the rows that are due."""
    for stream, time in contents.horizons.items():
        store.advance(stream, time)
    if contents.watermark is not None:
        name = pa.RecordBatch.from_pylist([{"name": "watermark"}], schema=WATERMARK.key)
        store.put(WATERMARK.name, contents.watermark, name)


def _opened(
    bucket: str | DurableBucket,
    streams: Iterable[StreamSchema],
    pointer: str | None,
    batch_id: int,
    options: Options,
) -> MultimapStore:
    return open_attempt(
        bucket,
        list(streams),
        pointer=pointer,
        batch_id=batch_id,
        attempt_id=_ATTEMPT,
        options=options,
    )
