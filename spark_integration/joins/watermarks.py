"""Event time of a multiway_join, from the watermarks of its inputs and the intervals of its
condition."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.intervals import DAY_US, Bound
from lsmstate.joins.conditions.join_tree import bound_text
from lsmstate.joins.options import Time
from lsmstate.joins.specs.event_time import EventTime, Joined, Retention, time_bounds
from lsmstate.spark_integration.columns.schemas import WATERMARK_METADATA

#: Time zones whose days all have 24 hours.
_FIXED_ZONE: Final = re.compile(r"(?i)(utc|gmt|z|etc/\w+)?([+-]\d{1,2}(:?\d{2})?(:\d{2})?)?")


def timing_of(
    spec: Joined,
    streams: Mapping[str, DataFrame],
    conjuncts: Sequence[str],
    retention: Retention,
    late: str,
    result_time: str | None,
) -> EventTime | None:
    """How long rows are kept and what becomes of late ones; None if all rows match for ever.

    A stream's event time is the column of its watermark. InvalidArgumentError if something does not
    fit.
    """
    if not isinstance(retention, Mapping):
        raise InvalidArgumentError(
            f"retention={retention!r} is not a dictionary; give the retention of each stream, as "
            f"in {{{next(iter(streams))!r}: {retention!r}}}"
        )
    columns = watermarked(spec.streams, streams)
    for name in retention:
        if name in streams and name not in columns:
            raise InvalidArgumentError(
                f"retention[{name!r}]={retention[name]!r}: stream {name!r} has no watermark, so "
                f'its rows have no event time; add {name}.withWatermark("column", "delay")'
            )
    bounds, _ = time_bounds(spec.streams, conjuncts)
    zone = next(iter(streams.values())).sparkSession
    bounds = tuple(_with_room(bound, spec.streams, zone) for bound in bounds)
    timing = EventTime.create(spec, columns, bounds, retention, late, result_time is not None)
    if result_time is not None:
        _check_result_time(result_time, spec, timing)
    elif not timing.forgets:
        if late != "drop":
            raise InvalidArgumentError(
                f"late={late!r}: this join keeps every row for ever, so no row is late; leave "
                "late out, or bound the time of streams with watermarks by retention or by time "
                "intervals in the condition"
            )
        return None
    return timing


def check_hours(
    bounds: Iterable[Bound], streams: Mapping[str, pa.Schema], spark: SparkSession
) -> None:
    """InvalidArgumentError if Spark would count days by a calendar in which they differ in
    length."""
    for bound in bounds:
        if _with_room(bound, streams, spark) != bound:
            raise InvalidArgumentError(
                f"{bound_text(bound)}: a day of the session's time zone may have 23 or 25 hours; "
                "with emit='final' or emit='changes' write hours, or set "
                "spark.sql.session.timeZone to UTC"
            )


def described(timing: EventTime | None) -> list[str] | None:
    """How long the rows of each stream are kept, as the checkpoint pins it."""
    if timing is None:
        return None
    return [
        f"{name} {_kept(kept)}" + (f" {timing.columns[name]}" if name in timing.columns else "")
        for name, kept in timing.kept_us.items()
    ]


def check_keeps_all(retention: Retention | None, late: str, result_time: str | None) -> None:
    """InvalidArgumentError if a join that forgets nothing has options of event time."""
    told = {"retention": retention or None, "late": late, "result_time": result_time}
    for name, value in told.items():
        if value not in (None, "drop"):
            raise InvalidArgumentError(
                f"{name}={value!r} applies to append-only inner joins; leave it out, leave out "
                "how, emit and changes, or write time intervals into the condition"
            )


def explained_time(timing: EventTime | None) -> str:
    """Text for people: how long rows are kept."""
    if timing is None:
        return "every row is kept for ever"
    listed = [
        f"{name}: for ever, since the time of another stream is not bounded by its own"
        if kept is None
        else f"{name}: {_kept(kept)} {timing.columns[name]}"
        for name, kept in timing.kept_us.items()
    ]
    return f"rows are kept ({'; '.join(listed)}); late rows: {timing.late}"


def _kept(kept: int | None) -> str:
    if kept is None:
        return "for ever after"
    return f"until the watermark is {timedelta(microseconds=kept)} past"


def watermark_columns(streams: Mapping[str, DataFrame]) -> dict[str, str]:
    """By stream, the column of its watermark."""
    return {
        name: field.name
        for name, frame in streams.items()
        for field in frame.schema
        if WATERMARK_METADATA in (field.metadata or {})
    }


def watermark_missing(columns: Mapping[str, str]) -> str:
    """What gives streams event times, for messages."""
    return "add " + " and ".join(
        f'{stream}.withWatermark("{column}", "10 minutes")' for stream, column in columns.items()
    )


def watermarked(rows: Mapping[str, pa.Schema], streams: Mapping[str, DataFrame]) -> dict[str, str]:
    """By stream, the column of its watermark if that is a time stamp."""
    return {
        name: column
        for name, column in watermark_columns(streams).items()
        if pa.types.is_timestamp(rows[name].field(column).type)
    }


def _with_room(bound: Bound, streams: Mapping[str, pa.Schema], spark: SparkSession) -> Bound:
    """The bound, widened by a day if Spark may count one: it counts days by the calendar of the
    session's time zone. Spark then checks the condition itself on what is found."""
    kind = streams[bound.later.stream].field(bound.later.name).type
    if bound.has_days and kind.tz is not None and not has_whole_days(spark):
        return bound.widened(DAY_US)
    return bound


def has_whole_days(spark: SparkSession) -> bool:
    """Whether all days of the session's time zone have 24 hours."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return _FIXED_ZONE.fullmatch(zone) is not None


def _check_result_time(name: str, spec: Joined, timing: EventTime) -> None:
    taken = {column.lower(): column for column in spec.output_schema.names}
    if name.lower() in taken:
        raise InvalidArgumentError(
            f"result_time={name!r}: the result has a column {taken[name.lower()]!r} already; "
            "choose another name"
        )
    missing = [stream for stream in spec.streams if stream not in timing.columns]
    if missing:
        raise InvalidArgumentError(
            f"result_time={name!r}: stream {missing[0]!r} has no watermark, so its rows may come "
            f'at any time; add {missing[0]}.withWatermark("column", "delay")'
        )
    if timing.late == "join":
        raise InvalidArgumentError(
            f"result_time={name!r} with late={timing.late!r}: results of late rows would be late "
            "above the join, where Spark drops them; choose late='drop' or 'side'"
        )
    if len({spec.streams[s].field(c).type for s, c in timing.columns.items()}) > 1:
        raise InvalidArgumentError(
            f"result_time={name!r}: some event times are TIMESTAMP and some TIMESTAMP_NTZ; cast "
            "them to one type before the join"
        )


def result_time_type(spec: Joined, timing: EventTime) -> pa.DataType:
    """The type of all event times."""
    stream, column = next(iter(timing.columns.items()))
    return spec.streams[stream].field(column).type


def check_not_named(time: Time) -> None:
    """InvalidArgumentError for ``event_time``, an option of plain joins only."""
    if time.event_time is not None:
        raise InvalidArgumentError(
            f"event_time={time.event_time!r}: on Spark the event time of a stream is the "
            'column of its watermark; write stream.withWatermark("column", "delay") instead'
        )
