"""Tables of routes as files: which table a micro-batch is routed by, and what it was made from.

    <state>/routes/table-0000000012-000002.json       for ``PERIOD`` micro-batches from number 12 on
    <state>/routes/seen-0000000011-000007-000002-...  what bucket 7 had seen by micro-batch 11

- All tasks of a micro-batch, and its repetitions, must route by one table, and a late attempt must
  change nothing. So the first task that needs a table writes its file completely, and nobody
  changes it. All others read it, whenever they run.
- The first table of some routings is made from rows (``ObservingRouting``): from the first ones of
  the first task that has any. A task without rows makes none, and needs none. That table is right
  for whatever rows come, so the one of micro-batch 0 counts for all starts.
- On a remote file system no file can be created exclusively. There a table is *made alike*: its
  routing gives the same one from whatever attempts have seen (``makes_tables_alike``), so whoever
  makes it writes the same bytes. A maker first reads what was seen, then looks whether the table is
  there, and writes it only if not. What a table is made from is deleted only after the table was
  written: so a maker that found none has read all of it, and does no harm however late it writes.
  No first table is made from rows, which tasks see in no order.
- What a table says is its routing's (``TableRouting``): a table is made from the one before, and
  from what the buckets have seen. A ``seen`` file that is missing, torn or of another attempt does
  no harm, but one about other rows would. So both kinds of file have the number of a start of the
  query (here the second one), and count only for starts whose past it is (``starts``).
- Spark runs micro-batches without tasks for other operators' sake. They make no table. The next
  table is made from the last one and names the *skipped* ones. By that, a bucket that was called in
  a skipped micro-batch knows that its table is missing.
- A task knows its micro-batch by the local property ``streaming.sql.batchId``, which Spark sets for
  the jobs of a micro-batch, retried and speculative tasks included.
"""

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import pyarrow as pa

from lsmstate.errors import CorruptionError, InvalidArgumentError
from lsmstate.joins.protocols import (
    Observed,
    ObservingRouting,
    Table,
    TableRouting,
    makes_tables_alike,
)
from lsmstate.remote.directory import remove_if_there
from lsmstate.spark_integration.checkpoint.json_records import (
    create_record_in,
    listed_files,
    read_record_in,
)
from lsmstate.spark_integration.checkpoint.starts import UNTOLD, Starts, newest_starts, record_start
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.state_location import StatePlace

#: Micro-batches between two tables.
PERIOD: Final = 4

_DIRECTORY: Final = "routes"
_SKIPPED: Final = "skipped"
_TABLE: Final = re.compile(r"table-(?P<batch>\d{10,})(-(?P<start>\d{6,}))?\.json")
_SEEN: Final = re.compile(
    r"seen-(?P<batch>\d{10,})-(?P<bucket>\d{6,})-((?P<start>\d{6,})-)?.+\.json"
)

#: Some rows of a stream: its name, the rows, and their keys.
Sample = tuple[str, pa.RecordBatch, pa.RecordBatch]

_log: Final = logging.getLogger("lsmstate")


class VersionedTables:
    """The tables of one query beside its state, as a task of the newest of its ``starts`` sees
    them."""

    def __init__(
        self,
        place: StatePlace,
        routing: TableRouting,
        buckets: int,
        retained_batches: int,
        *,
        starts: Starts = UNTOLD,
    ) -> None:
        self._routing = routing
        self._starts = starts
        self._place = place
        #: Whether they lie where no file can be created exclusively, so that they are made alike.
        self.are_shared = place.local_directory is None
        self._takes_rows = isinstance(routing, ObservingRouting) and bool(place.local_directory)
        self._buckets = buckets
        self._retained_batches = retained_batches

    @classmethod
    def of(cls, plan: StatefulPlan, run: TaskRun) -> Self | None:
        """The tables of a task's query, by its settled plan; None: its routing has none.
        InvalidArgumentError for a state that is not local, unless all makers of a table make the
        same one."""
        routing = plan.routing
        if not isinstance(routing, TableRouting):
            return None
        if run.place.local_directory is None and not makes_tables_alike(routing):
            raise InvalidArgumentError(
                f"{run.place.where} is not a local directory, which this routing needs for its "
                "tables; name one with state_dir, or choose another routing"
            )
        return cls(
            run.place,
            routing,
            run.pinned.buckets,
            run.retained_batches,
            starts=run.starts,
        )

    def table(self, batch_id: int, sample: Sample | None = None) -> Table:
        """The table of a micro-batch, always the same one. It is made now if no task asked for it.

        ``sample``: rows of the task, of which the first table may be made. Without any, where no
        table was made yet, it is the routing's initial one.

        CorruptionError if a table is damaged. Cost: one small read; every ``PERIOD`` micro-batches
        a directory and its small files.
        """
        first = _first(batch_id)
        if first == 0 and not isinstance(self._routing, ObservingRouting):
            return self._routing.initial_table
        name = self._table_name(first)
        found = read_record_in(self._place, name)
        if found is None:
            found = self._made(first, sample)
            if found is None:
                return self._routing.initial_table
            if create_record_in(self._place, name, found, sync=True):
                self._remove_old(first)
            else:
                found = read_record_in(self._place, name)
                assert found is not None, "a table is there once it could not be created"
        return self._routing.table_from_json(found)

    def check_is_known(self, called: int, batch_id: int) -> None:
        """CorruptionError if the table of an earlier micro-batch, in which a bucket was
        ``called``, was missing when that of ``batch_id`` was made. Results would lack the
        rows that were stored by it."""
        found = read_record_in(self._place, self._table_name(_first(batch_id))) or {}
        for low, high in found.get(_SKIPPED, ()):
            if low <= _first(called) <= high:
                raise CorruptionError(
                    f"is missing, so {self._table_name(_first(batch_id))} lacks what it held; "
                    "restore the state from a copy of the checkpoint",
                    f"{self._place.where}/{self._table_name(_first(called))}",
                )

    def publish(self, observed: Observed, batch_id: int, attempt: str) -> None:
        """Report what a bucket has seen by the end of this micro-batch. Does nothing unless a table
        follows."""
        if precedes_table(batch_id):
            start = self._starts.newest
            name = f"seen-{batch_id:010d}-{observed.bucket:06d}-{start:06d}-{attempt}.json"
            create_record_in(self._place, f"{_DIRECTORY}/{name}", observed.to_json())

    def told(self, bucket: int, batch_id: int) -> str | None:
        """What a bucket has committed by a micro-batch that precedes a table, as one of its
        attempts told; all have committed the same rows. None: it is forgotten."""
        for name in _names(self._place, _SEEN):
            if int(name["bucket"]) == bucket and _is_seen_by(self._starts, name, batch_id):
                record = read_record_in(self._place, f"{_DIRECTORY}/{name[0]}") or {}
                if record.get("commit") is not None:
                    return str(record["commit"])
        return None

    def _made(self, first: int, sample: Sample | None) -> dict[str, Any] | None:
        """The record of the next table, made from the last one; None: it is not to be made now."""
        last = max((n for n in _tables(self._place, self._starts) if n < first), default=None)
        if last is None and self._takes_rows:
            return None if sample is None else self._sampled(first, sample)
        if first == 0:
            return None
        record = None if last is None else read_record_in(self._place, self._table_name(last))
        last = last or 0
        skipped = record.get(_SKIPPED, []) if record else []
        if last + PERIOD < first:
            skipped = [*skipped, [last + PERIOD, first - PERIOD]]
        routing = self._routing
        before = routing.table_from_json(record) if record else routing.initial_table
        table = routing.next_table(before, self._observed(first - 1), first)
        return {**table.to_json(), _SKIPPED: skipped}

    def _sampled(self, first: int, sample: Sample) -> dict[str, Any]:
        """The record of the first table. Buckets that were called before it had one that is gone
        (``check_is_known``)."""
        assert isinstance(self._routing, ObservingRouting)
        table = self._routing.sampled_table(*sample, first)
        return {**table.to_json(), _SKIPPED: [[0, first - PERIOD]] if first else []}

    def _observed(self, batch_id: int) -> list[Observed]:
        """What each bucket has seen. Of several attempts, the first by name counts. Files are
        not forced to disk, so a power failure may tear them."""
        found: dict[int, Observed] = {}
        torn: list[str] = []
        for name in _names(self._place, _SEEN):
            bucket = int(name["bucket"])
            is_new = bucket not in found and bucket < self._buckets
            if is_new and _is_seen_by(self._starts, name, batch_id):
                try:
                    record = read_record_in(self._place, f"{_DIRECTORY}/{name[0]}") or {}
                except CorruptionError:
                    torn.append(name[0])
                    continue
                found[bucket] = self._routing.observed_from_json(bucket, record)
        if torn:
            _log.warning(
                "what was seen by micro-batch %d: %d of %d files are damaged and were ignored: %s",
                batch_id,
                len(torn),
                len(torn) + len(found),
                ", ".join(torn),
            )
        return list(found.values())

    def _remove_old(self, first: int) -> None:
        """Remove the files that neither Spark may go back to nor the next table needs."""
        horizon = first - self._retained_batches - 2 * PERIOD
        kept = max((n for n in _tables(self._place, self._starts) if n <= horizon), default=0)
        _remove_if(self._place, _TABLE, lambda name: _batch(name) < kept)
        # A later start's are not ours to remove. Shared tables may refer to what attempts told.
        newest, last = self._starts.newest, horizon if self.are_shared else first
        _remove_if(self._place, _SEEN, lambda name: _batch(name) < last and _start(name) <= newest)

    def _table_name(self, first: int) -> str:
        start = _start_of(self._starts, first)
        number = f"{first:010d}-{start:06d}" if start else f"{first:010d}"
        return f"{_DIRECTORY}/table-{number}.json"


def begin(place: StatePlace, batch_id: int) -> Starts:
    """Record a start of the query with this micro-batch. Returns its starts, this one as the
    newest. Files that others made from later micro-batches, before the query was set back, count no
    more and are removed."""
    oldest = min((_batch(name) for name in _names(place, _TABLE)), default=0)
    starts = record_start(place, _DIRECTORY, batch_id, oldest)
    _remove_if(place, _TABLE, lambda name: not _is_made_by(starts, name))
    _remove_if(place, _SEEN, lambda name: not _is_seen_by(starts, name, _batch(name)))
    return starts


def newest_table(place: StatePlace, routing: TableRouting) -> Table:
    """The last table that a query made, for people."""
    starts = newest_starts(place, _DIRECTORY)
    names = [name for name in _names(place, _TABLE) if _is_made_by(starts, name)]
    found = read_record_in(place, f"{_DIRECTORY}/{names[-1][0]}") if names else None
    return routing.initial_table if found is None else routing.table_from_json(found)


def _first(batch_id: int) -> int:
    """The first of the micro-batches that share a table; 0: they have none."""
    return batch_id - batch_id % PERIOD


def _tables(place: StatePlace, starts: Starts) -> Iterator[int]:
    """The first micro-batches of the tables that count."""
    names = _names(place, _TABLE)
    return (_batch(name) for name in names if _is_made_by(starts, name))


def _is_made_by(starts: Starts, table: re.Match[str]) -> bool:
    return _start(table) == _start_of(starts, _batch(table))


def _start_of(starts: Starts, first: int) -> int:
    """The start whose table counts from micro-batch ``first`` on."""
    return starts.before(first) if first else 0


def _is_seen_by(starts: Starts, seen: re.Match[str], batch_id: int) -> bool:
    return _batch(seen) == batch_id and _start(seen) == starts.that_ran(batch_id)


def _batch(name: re.Match[str]) -> int:
    return int(name["batch"])


def _start(name: re.Match[str]) -> int:
    return int(name["start"] or 0)


def _remove_if(
    place: StatePlace, form: re.Pattern[str], is_over: Callable[[re.Match[str]], bool]
) -> None:
    """Remove the files of a form that nobody needs. Another attempt may be faster."""
    for found in _names(place, form):
        if is_over(found):
            remove_if_there(place.files, f"{_DIRECTORY}/{found[0]}")


def _names(place: StatePlace, form: re.Pattern[str]) -> list[re.Match[str]]:
    """The files whose names have a form, in order. OSError."""
    names = sorted(listed_files(place, _DIRECTORY))
    return [found for found in map(form.fullmatch, names) if found]


def precedes_table(batch_id: int) -> bool:
    """Whether the next table is made from what this micro-batch has seen."""
    return (batch_id + 1) % PERIOD == 0
