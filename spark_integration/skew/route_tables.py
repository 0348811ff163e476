"""Tables of routes on disk: which table a micro-batch is routed by, and what it was made from.

    <state>/routes/table-0000000012-000002.json       for ``PERIOD`` micro-batches from number 12 on
    <state>/routes/seen-0000000011-000007-000002-...  the key counts of bucket 7 by micro-batch 11

- All tasks of a micro-batch, and its repetitions, must route by one table, and a late attempt must
  change nothing. So the first task that needs a table writes its file completely, and nobody
  changes it. All others read it, whenever they run.
- A table names every key that was ever spread. The key counts say which keys get more buckets, and
  from which commit of the owner they copy earlier rows. A file of counts that is missing, torn or
  of another attempt does no harm, but counts of other rows would. So both kinds of file have the
  number of a start of the query (here the second one), and count only for starts whose past it is
  (``starts``).
- Spark runs micro-batches without tasks for other operators' sake. They make no table. The next
  table is made from the last one and names the *skipped* ones. By that, a bucket that was called in
  a skipped micro-batch knows that its table is missing.
- A task knows its micro-batch by the local property ``streaming.sql.batchId``, which Spark sets for
  the jobs of a micro-batch, retried and speculative tasks included.
"""

import base64
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from lsmstate.cython_ext.base.file import remove
from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.routing.skew.heavy_hitters import HeavyHitters
from lsmstate.joins.routing.skew.respread import MOST_KEYS, Seen, respread
from lsmstate.joins.routing.skew.spread import Addition, RouteTable, SpreadKey
from lsmstate.spark_integration.checkpoint.json_records import create_record, read_record
from lsmstate.spark_integration.checkpoint.starts import UNTOLD, Starts, newest_starts, record_start
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan

#: Micro-batches between two tables.
PERIOD: Final = 4

_DIRECTORY: Final = "routes"
_SKIPPED: Final = "skipped"
_TABLE: Final = re.compile(r"table-(?P<batch>\d{10,})(-(?P<start>\d{6,}))?\.json")
_SEEN: Final = re.compile(
    r"seen-(?P<batch>\d{10,})-(?P<bucket>\d{6,})-((?P<start>\d{6,})-)?.+\.json"
)

_log: Final = logging.getLogger("lsmstate")


class Routes:
    """The tables of one query in the local directory of its state, as a task of the newest of its
    ``starts`` sees them."""

    def __init__(
        self,
        state_directory: str,
        buckets: int,
        retained_batches: int,
        *,
        streams: Sequence[str],
        starts: Starts = UNTOLD,
    ) -> None:
        self._streams = streams
        self._starts = starts
        self._directory = os.path.join(state_directory, _DIRECTORY)
        self._buckets = buckets
        self._retained_batches = retained_batches

    @classmethod
    def of(cls, plan: StatefulPlan, run: TaskRun) -> Self:
        """The tables of a task's query. InvalidArgumentError unless the state is local."""
        if run.place.local_directory is None:
            raise InvalidArgumentError(
                f"{run.place.where} is not a local directory, which skew='spread' needs; name one "
                "with state_dir, or use skew='observe'"
            )
        return cls(
            run.place.local_directory,
            run.pinned.buckets,
            run.retained_batches,
            streams=[source.name for source in plan.inputs],
            starts=run.starts,
        )

    def table(self, batch_id: int) -> RouteTable:
        """The table of a micro-batch, always the same one. It is made now if no task asked for it.

        CorruptionError if a table is damaged. Cost: one small read; every ``PERIOD`` micro-batches
        a directory and its small files.
        """
        first = _first(batch_id)
        if first == 0:
            return RouteTable()
        path = self._table_path(first)
        found = read_record(path)
        if found is None:
            found = self._made(first)
            if create_record(path, found, sync=True):
                self._remove_old(first)
            else:
                found = read_record(path)
                assert found is not None, "a table is there once it could not be created"
        return _unpacked(found)

    def check_is_known(self, called: int, batch_id: int) -> None:
        """CorruptionError if the table of an earlier micro-batch, in which a bucket was
        ``called``, was missing when that of ``batch_id`` was made. Results would lack the
        rows that it spread."""
        found = read_record(self._table_path(_first(batch_id))) or {}
        for low, high in found.get(_SKIPPED, ()):
            if low <= _first(called) <= high:
                raise CorruptionError(
                    f"is missing, so {self._table_path(_first(batch_id))} lacks what it held; "
                    "restore the state from a copy of the checkpoint",
                    self._table_path(_first(called)),
                )

    def publish(self, seen: Seen, batch_id: int, attempt: str) -> None:
        """Report the key counts of a bucket by the end of this micro-batch. Does nothing unless a
        table follows."""
        if precedes_table(batch_id):
            start = self._starts.newest
            name = f"seen-{batch_id:010d}-{seen.bucket:06d}-{start:06d}-{attempt}.json"
            create_record(os.path.join(self._directory, name), _packed_seen(seen))

    def _made(self, first: int) -> dict[str, Any]:
        """The record of the next table, made from the last one."""
        last = max((n for n in _tables(self._directory, self._starts) if n < first), default=0)
        before = (read_record(self._table_path(last)) if last else None) or _packed(RouteTable())
        skipped = before.get(_SKIPPED, [])
        if last + PERIOD < first:
            skipped = [*skipped, [last + PERIOD, first - PERIOD]]
        known = _unpacked(before)
        table = respread(known, self._seen(first - 1), self._buckets, self._streams)
        if len(known.keys) < len(table.keys) == MOST_KEYS:
            _log.warning(
                "%d hot keys are spread from micro-batch %d on, which is the maximum; any further "
                "hot key stays in one bucket",
                MOST_KEYS,
                first,
            )
        return {**_packed(table), _SKIPPED: skipped}

    def _seen(self, batch_id: int) -> list[Seen]:
        """The key counts of each bucket. Of several attempts, the first by name counts. Files are
        not forced to disk, so a power failure may tear them."""
        found: dict[int, Seen] = {}
        torn: list[str] = []
        for name in _names(self._directory, _SEEN):
            bucket = int(name["bucket"])
            is_new = bucket not in found and bucket < self._buckets
            if is_new and _is_seen_by(self._starts, name, batch_id):
                try:
                    record = read_record(os.path.join(self._directory, name[0])) or {}
                except CorruptionError:
                    torn.append(name[0])
                    continue
                found[bucket] = _unpacked_seen(bucket, record)
        if torn:
            _log.warning(
                "key counts of micro-batch %d: %d of %d files are damaged and were ignored: %s",
                batch_id,
                len(torn),
                len(torn) + len(found),
                ", ".join(torn),
            )
        return list(found.values())

    def _remove_old(self, first: int) -> None:
        """Remove the files that neither Spark may go back to nor the next table needs."""
        horizon = first - self._retained_batches - 2 * PERIOD
        kept = max((n for n in _tables(self._directory, self._starts) if n <= horizon), default=0)
        _remove_if(self._directory, _TABLE, lambda name: _batch(name) < kept)
        # A later start's are not ours to remove.
        newest = self._starts.newest
        _remove_if(
            self._directory, _SEEN, lambda name: _batch(name) < first and _start(name) <= newest
        )

    def _table_path(self, first: int) -> str:
        start = self._starts.before(first)
        number = f"{first:010d}-{start:06d}" if start else f"{first:010d}"
        return os.path.join(self._directory, f"table-{number}.json")


def begin(state_directory: str, batch_id: int) -> Starts:
    """Record a start of the query with this micro-batch. Returns its starts, this one as the
    newest. Files that others made from later micro-batches, before the query was set back, count no
    more and are removed."""
    directory = os.path.join(state_directory, _DIRECTORY)
    oldest = min((_batch(name) for name in _names(directory, _TABLE)), default=0)
    starts = record_start(directory, batch_id, oldest)
    _remove_if(directory, _TABLE, lambda name: not _is_made_by(starts, name))
    _remove_if(directory, _SEEN, lambda name: not _is_seen_by(starts, name, _batch(name)))
    return starts


def newest_table(state_directory: str) -> RouteTable:
    """The last table that a query made, for people."""
    directory = os.path.join(state_directory, _DIRECTORY)
    starts = newest_starts(directory)
    names = [name for name in _names(directory, _TABLE) if _is_made_by(starts, name)]
    found = read_record(os.path.join(directory, names[-1][0])) if names else None
    return RouteTable() if found is None else _unpacked(found)


def _first(batch_id: int) -> int:
    """The first of the micro-batches that share a table; 0: they have none."""
    return batch_id - batch_id % PERIOD


def _tables(directory: str, starts: Starts) -> Iterator[int]:
    """The first micro-batches of the tables that count."""
    names = _names(directory, _TABLE)
    return (_batch(name) for name in names if _is_made_by(starts, name))


def _is_made_by(starts: Starts, table: re.Match[str]) -> bool:
    return _start(table) == starts.before(_batch(table))


def _is_seen_by(starts: Starts, seen: re.Match[str], batch_id: int) -> bool:
    return _batch(seen) == batch_id and _start(seen) == starts.that_ran(batch_id)


def _batch(name: re.Match[str]) -> int:
    return int(name["batch"])


def _start(name: re.Match[str]) -> int:
    return int(name["start"] or 0)


def _remove_if(
    directory: str, form: re.Pattern[str], is_over: Callable[[re.Match[str]], bool]
) -> None:
    """Remove the files of a form that nobody needs."""
    for found in _names(directory, form):
        if is_over(found):
            with suppress(FileNotFoundError):  # another attempt was faster
                remove(os.path.join(directory, found[0]))


def _names(directory: str, form: re.Pattern[str]) -> list[re.Match[str]]:
    """The files whose names have a form, in order."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [found for found in map(form.fullmatch, names) if found]


def precedes_table(batch_id: int) -> bool:
    """Whether the next table is made from what this micro-batch has seen."""
    return (batch_id + 1) % PERIOD == 0


def _packed(table: RouteTable) -> dict[str, Any]:
    return {"keys": [_packed_key(key) for key in table.keys]}


def _unpacked(found: dict[str, Any]) -> RouteTable:
    return RouteTable(tuple(_unpacked_key(*key) for key in found["keys"]))


def _packed_key(key: SpreadKey) -> list[Any]:
    packed = [key.hash, key.key, list(key.buckets)]
    if key.stream is None:
        return packed
    added = key.addition
    if added is None:
        return [*packed, key.stream, None]
    return [*packed, key.stream, [list(added.buckets), added.pointer, _text(added.key)]]


def _unpacked_key(
    number: int,
    key: str,
    buckets: list[int],
    stream: str | None = None,
    added: list[Any] | None = None,
) -> SpreadKey:
    if added is None:
        return SpreadKey(number, key, tuple(buckets), stream)
    more, pointer, row = added
    addition = Addition(tuple(more), pointer, base64.b64decode(row))
    return SpreadKey(number, key, tuple(buckets), stream, addition)


def _packed_seen(seen: Seen) -> dict[str, Any]:
    return {
        "sketches": {stream: sketch.to_row() for stream, sketch in seen.sketches.items()},
        "pointer": seen.pointer,
        "keys": [[number, _text(key)] for number, key in seen.keys.items()],
    }


def _unpacked_seen(bucket: int, record: dict[str, Any]) -> Seen:
    """The key counts. A record of an earlier release has none."""
    sketches = record.get("sketches", {}).items()
    return Seen(
        bucket,
        {stream: HeavyHitters.from_row(row) for stream, row in sketches},
        record.get("pointer"),
        {number: base64.b64decode(key) for number, key in record.get("keys", ())},
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
