"""deduplicate: the first row of each key, in plain Python; and what is the same on Spark.

A key that was seen lies in the store, in memory or on disk. With ``within`` it is forgotten when
the watermark is that far past the event time of its first row.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.joins.conditions.names import resolved
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.parts.time_checks import LateRows
from lsmstate.joins.local.timed.event_time_join import (
    LATE_ROWS,
    kept_watermark,
    watermark_write,
)
from lsmstate.joins.options import GROUPS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.shown import join_shown
from lsmstate.joins.specs.event_time import WATERMARK, EventTime, duration_us
from lsmstate.opening import open_store
from lsmstate.option_names import names_checked
from lsmstate.schema.batches import as_batch
from lsmstate.shown import Shown, ShownTable
from lsmstate.stats import StoreStats
from lsmstate.store import BatchLike, MultimapStore, StreamSchema
from lsmstate.store_base.key_groups import KeyGroups
from lsmstate.store_base.null_safe import null_safe_keys, null_safe_schema

#: The stream of the keys that were seen.
SEEN: Final = "seen"
#: The counter of rows that were left out because their key was seen.
DUPLICATES: Final = "duplicates"
#: What a single stream is called.
STREAM: Final = "rows"
_MARK: Final = "seen"
_TIME_HERE: Final = ("event_time", "within")
#: Why there are no windows.
NO_WINDOW: Final = {
    "window": "says no key: rows of one window are duplicates by its start; add that as a column, "
    "and name it among keys"
}
_STATE_HERE: Final = ("memory", "backend", "state_dir", "options")
_ON_SPARK: Final = "has no effect on deduplicate in plain Python; leave it out"
_ELSEWHERE: Final = {"memory_bytes": "give memory=... instead"}


def checked_keys(keys: Sequence[str] | str, columns: Sequence[str]) -> list[str]:
    """The key columns as the schema spells them. InvalidArgumentError names what does not fit."""
    listed = [keys] if isinstance(keys, str) else keys
    if not isinstance(listed, Sequence) or not listed:
        raise InvalidArgumentError(
            f'keys={keys!r}: give a column, such as "id", or a list of columns; rows with equal '
            "values there are duplicates"
        )
    found = [resolved("column", name, columns) for name in listed]
    for name in found:
        if found.count(name) > 1:
            raise InvalidArgumentError(f"keys={keys!r}: column {name!r} stands twice; name it once")
    return found


def seen_stream(key: pa.Schema, time: pa.Field | None, within_us: int | None) -> StreamSchema:
    """The stream of the keys that were seen.

    Args:
        key: Types in which keys are compared.
        time: The column of event times, if keys are forgotten.
        within_us: How long after that a key is kept.
    """
    if time is None or within_us is None:
        return StreamSchema(SEEN, key, pa.schema([(_MARK, pa.bool_())]))
    expiry = Expiry(time.name, timedelta(microseconds=within_us))
    return StreamSchema(SEEN, key, pa.schema([time]), expiry=expiry)


def first_rows(
    store: MultimapStore,
    rows: pa.RecordBatch,
    keys: pa.RecordBatch,
    stored: pa.RecordBatch,
    time: str | None,
) -> npt.NDArray[np.int64]:
    """Find the rows whose key was not seen, and note their keys.

    Args:
        store: Has the stream ``seen_stream``.
        rows: The rows that arrive.
        keys: Their keys.
        stored: The same keys as the store has them.
        time: The column of event times, if keys are forgotten.

    Returns:
        The positions of the first row of each new key, ascending.

    Cost:
        A sort of the keys, and one lookup for each distinct one.
    """
    first = np.sort(KeyGroups.of(keys).first)
    if not len(first):
        return first
    is_new = ~store.exists(SEEN, stored.take(pa.array(first)))
    new = first[is_new]
    at = pa.array(new)
    marks = (
        pa.record_batch({_MARK: pa.array(np.ones(len(new), np.bool_))})
        if time is None
        else rows.select([time]).take(at)
    )
    store.append(SEEN, marks, stored.take(at))
    return new


class Deduplication(Shown):
    """The first row of each key; made by ``deduplicate``."""

    def __init__(
        self,
        rows: pa.Schema,
        keys: Sequence[str],
        time: str | None,
        within_us: int | None,
        state: State,
    ) -> None:
        self.schema = rows
        self.keys = tuple(keys)
        self._time = time
        at = None if time is None else rows.field(time)
        key = pa.schema([rows.field(name) for name in keys])
        self._streams = [seen_stream(null_safe_schema(key), at, within_us), WATERMARK]
        self._late = None if time is None else LateRows(STREAM, time, rows)
        self._counts = {DUPLICATES: 0, LATE_ROWS: 0}
        options = state.store_options(_ELSEWHERE)
        with ExitStack() as opened:
            path = state.state_dir or opened.enter_context(TemporaryDirectory(prefix="lsmstate-"))
            self._store = open_store(
                os.fspath(path), self._streams, backend=state.backend, options=options
            )
            opened.callback(self._store.close)
            self._watermark_us = kept_watermark(self._store)
            if self._watermark_us is not None:
                self._forget(self._watermark_us)
            self._opened = opened.pop_all()

    def process(self, batch: BatchLike) -> Results:
        """Note the keys of a batch, and return its rows whose key was not seen before.

        Args:
            batch: The rows: an object of the Arrow PyCapsule protocol, a mapping of columns, or a
                list of dictionaries.

        Returns:
            These rows, in the order in which they came.

        Raises:
            InvalidArgumentError: The columns do not fit. Nothing is noted.

        Cost:
            A sort of the keys, and one lookup for each distinct one.
        """
        rows = as_batch(batch, self.schema, "process")
        if self._late is not None and self._watermark_us is not None:
            late = self._late.late(rows, self._watermark_us)
            self._counts[LATE_ROWS] += int(late.sum())
            rows = rows.filter(pa.array(~late))
        keys = rows.select(list(self.keys))
        new = first_rows(self._store, rows, keys, null_safe_keys(keys), self._time)
        self._counts[DUPLICATES] += rows.num_rows - len(new)
        found = rows.take(pa.array(new))
        return Results([found] if found.num_rows else [], schema=self.schema)

    def advance(self, watermark: datetime) -> None:
        """Set the watermark: no row with a time up to it will come any more.

        Keys that are due are forgotten. A row that comes with such a time is late and left out. A
        lower watermark than before changes nothing.

        Raises:
            InvalidArgumentError: Keys are kept for ever, or the watermark has no time zone although
                the event times have one.
        """
        if self._time is None:
            raise InvalidArgumentError(
                f"advance({watermark!r}): keys are kept for ever; give an event time, as in "
                'time=Time(event_time={"rows": "at"}, within="1 day")'
            )
        timing = EventTime({STREAM: self._time}, (), {}, "drop")
        found = timing.watermark_us({STREAM: self.schema}, watermark)
        if self._watermark_us is None or found > self._watermark_us:
            self._store.write([watermark_write(found)])
            self._forget(found)

    def _forget(self, watermark_us: int) -> None:
        assert self._late is not None
        self._watermark_us = watermark_us
        self._store.advance(SEEN, self._late.watermark(watermark_us))

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows left out since this was opened: ``duplicates`` and ``late_rows``."""
        return dict(self._counts)

    def commit(self) -> None:
        """Make everything that was fed durable, so that opening ``state_dir`` again finds it."""
        self._store.commit()

    def stats(self) -> StoreStats:
        """Return memory, disk and counters of the state."""
        return self._store.stats()

    def _as_tables(self) -> Iterable[ShownTable]:
        """Columns, keys, counters and state."""
        described = {"keys": list(self.keys), "event time": self._time}
        title = "Deduplication"
        return join_shown(title, {STREAM: self.schema}, described, self._counts, self._store)

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._opened.close()

    def __enter__(self) -> "Deduplication":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def within_us(within: str | timedelta | None) -> int | None:
    """Microseconds of ``within``; None: keys are kept for ever."""
    return None if within is None else duration_us("within", within)


@names_checked(GROUPS)
def deduplicate(
    rows: pa.Schema,
    keys: Sequence[str] | str,
    *,
    time: Time = TIME,
    state: State = STATE,
) -> Deduplication:
    """Let the first row of each key through, over the full history or within a length of time.

    A null equals a null. Of several rows of a key in one batch the first one counts.

    Args:
        rows: Columns of the rows.
        keys: Columns whose values are equal in duplicates: one name, or a list.
        time: With ``Time(event_time={"rows": "at"}, within="1 day")`` a key is forgotten when the
            watermark is a day past the event time of its first row.
        state: Where the state lies, and what it may take, with ``memory``, ``backend``,
            ``state_dir`` and ``options``.

    Returns:
        The deduplication: ``process(batch)`` returns the rows that are new.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        with deduplicate(pa.schema([("id", pa.int64()), ("what", pa.string())]), "id") as first:
            first.process([{"id": 1, "what": "a"}, {"id": 1, "what": "b"}]).to_table()
        ```
    """
    refuse_other_fields(time, _TIME_HERE, _ON_SPARK, NO_WINDOW)
    refuse_other_fields(state, _STATE_HERE, _ON_SPARK)
    if not isinstance(rows, pa.Schema):
        raise InvalidArgumentError(
            f"rows={rows!r} is a {type(rows).__name__}; give the columns as a pyarrow.Schema"
        )
    found = checked_keys(keys, rows.names)
    column = _event_time(time, rows)
    return Deduplication(rows, found, column, within_us(time.within), state)


def _event_time(time: Time, rows: pa.Schema) -> str | None:
    if (time.event_time is None) != (time.within is None):
        raise InvalidArgumentError(
            f"event_time={time.event_time!r} and within={time.within!r} go together: the column of "
            "event times and how long a key is kept after it; give both, as in Time(event_time="
            '{"rows": "at"}, within="1 day"), or none'
        )
    if time.event_time is None:
        return None
    given = dict(time.event_time) if isinstance(time.event_time, Mapping) else {}
    if set(given) != {STREAM}:
        raise InvalidArgumentError(
            f'event_time={time.event_time!r}: give {{"rows": "at"}}, with your column for at'
        )
    column = resolved("column", given[STREAM], rows.names)
    if not pa.types.is_timestamp(rows.field(column).type):
        raise InvalidArgumentError(
            f"event_time={time.event_time!r}: column {column!r} is {rows.field(column).type}; name "
            "a column of time stamps, or cast it to one"
        )
    return column
