"""SpecJoin: a join of any kind for plain Python, from its spec.

It opens the state, runs the local join over it, and keeps threads apart. The faces of kinds add
what people write: conditions, and types of columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Final, Self

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.kinds import kind_of, local_join
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.options import STATE, State, refuse_other_fields
from lsmstate.joins.protocols import Batch, Context, LocalJoin, Spec
from lsmstate.joins.recorded_join import KeptJoin
from lsmstate.joins.shown import join_shown
from lsmstate.joins.specs.event_time import EventTime
from lsmstate.local_directory import directory_path
from lsmstate.opening import open_store
from lsmstate.schema.batches import arrow_batch, as_batch
from lsmstate.shown import Shown, ShownTable
from lsmstate.stats import StoreStats
from lsmstate.store import BatchLike, MultimapStore
from lsmstate.store_base.guard import StoreGuard

_STATE_HERE: Final = ("memory", "backend", "state_dir", "options")
_ON_SPARK: Final = "is an option on Spark only; leave it out"
#: Fields of Options that are said elsewhere.
ELSEWHERE: Final = {"memory_bytes": "give memory=... instead"}


class SpecJoin(Shown):
    """One local join over one standalone store. Everything is in one bucket."""

    def __init__(
        self,
        spec: Spec,
        *,
        piece_bytes: int = 1 << 20,
        unmatched: str = "count",
        most_results: float | None = None,
        state: State = STATE,
        filters: Sequence[str] = (),
        inside: Callable[[], Spec] | None = None,
    ) -> None:
        """Open the state, or begin one.

        Args:
            spec: What is joined; its kind is registered in ``kinds``.
            piece_bytes: Most bytes of a piece of the results, unless a row is larger.
            unmatched: What becomes of a retraction of a row that is not stored.
            most_results: Most results for each row of a batch; None: more than 1,000 are logged.
            state: Where the state lies, and what it may take, with ``memory``, ``backend``,
                ``state_dir`` and ``options``. The same join finds a state in ``state_dir`` again;
                another one is refused. Default: a temporary directory, which ``close`` removes.
            filters: Conditions on the results, which are recorded with the join.
            inside: Gives the spec that is run, if it is another one; asked for when the state was
                found to be of ``spec``.

        Raises:
            InvalidArgumentError: The state belongs to another join, or a value does not fit.
        """
        refuse_other_fields(state, _STATE_HERE, _ON_SPARK)
        if isinstance(piece_bytes, bool) or not isinstance(piece_bytes, int):
            raise InvalidArgumentError(f"piece_bytes={piece_bytes!r}: give a number of bytes")
        path, backend = state.state_dir, state.backend
        if path is not None:
            path = directory_path(path, "state_dir")
        self.spec = spec
        recorded = None if path is None else KeptJoin(path, backend, spec, filters)
        if recorded is not None:
            recorded.check()
        options = state.store_options(ELSEWHERE)
        if path is None and options.sync is None:
            # A temporary directory is gone after a power cut anyway: nothing in it is synced.
            options = replace(options, sync="never")
        run = spec if inside is None else inside()
        context = Context(piece_bytes=piece_bytes, unmatched=unmatched, most_results=most_results)
        self._unfinished: Results | None = None
        with ExitStack() as opened:
            self._temporary: TemporaryDirectory[str] | None = None
            if path is None:
                self._temporary = TemporaryDirectory(prefix="lsmstate-")
                opened.enter_context(self._temporary)
                path = self._temporary.name
            self._store: MultimapStore = open_store(
                path, run.stream_schemas, backend=backend, options=options
            )
            opened.callback(self._store.close)
            if recorded is not None:
                recorded.keep()
            self._join = local_join(run, self._store, context)
            opened.pop_all()  # from here on, ``close`` releases it
        self._guard = StoreGuard(str(path), "join")

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of every result."""
        return self.spec.output_schema

    @property
    def event_time(self) -> EventTime | None:
        """What the join knows of event time; None if it keeps all rows for ever.

        ``columns`` has the event-time column of each stream, and ``kept_us`` how many microseconds
        a row is kept after its event time (None: for ever).
        """
        return self.spec.event_time

    def process(self, stream: str, batch: BatchLike) -> Results:
        """Store a batch, and return its new results.

        Args:
            stream: Name of the stream.
            batch: The rows: an object of the Arrow PyCapsule protocol, a mapping of columns, or a
                list of dictionaries. Columns are taken by name, in any order, and cast where no
                value changes.

        Returns:
            The results in bounded pieces, computed as they are read. Read them to the end, or close
            them, before the next call. ``to_table``, ``to_pandas`` and ``rows`` read them.

        Raises:
            InvalidArgumentError: The stream or the columns do not fit, or earlier results are not
                read. Nothing is stored.

        Cost:
            A pyarrow RecordBatch with the stream's schema is taken as it is. Another batch is
            converted first.
        """
        with self._guard.calling():
            if not isinstance(stream, str):
                raise InvalidArgumentError(
                    f"process({stream!r}): the stream is a {type(stream).__name__}; give its name"
                )
            self.spec.check_stream(stream)
            rows = self._arrived(stream, batch, f"process({stream!r})")
            self._unfinished = self._shown(self._join.process(Batch(stream, rows)))
            return self._unfinished

    def advance(self, watermark: datetime | int) -> Results:
        """Set the watermark: no row with a time up to it will come any more.

        Rows that no later row can match are forgotten. A lower watermark than before changes
        nothing. ``commit`` stores the watermark.

        Args:
            watermark: The watermark, as a datetime or in microseconds since 1970. A datetime with a
                time zone is taken as UTC for event times without one.

        Returns:
            The results that are now final, of joins whose results wait. Read them to the end, or
            close them, before the next call.

        Raises:
            InvalidArgumentError: Earlier results are not read, no stream has an event time, or the
                watermark has no time zone although an event time has one.
        """
        call = f"advance({watermark!r})"
        with self._guard.calling():
            check_finished(call, self._unfinished)
            self._unfinished = self._shown(self._join.advance(self._watermark_us(call, watermark)))
            return self._unfinished

    def _watermark_us(self, call: str, watermark: datetime | int) -> int:
        number = None if isinstance(watermark, datetime | bool) else watermark
        if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
            raise InvalidArgumentError(
                f"{call}: the watermark has more than 64 bits; give microseconds since 1970, "
                "or a datetime"
            )
        timing = self.spec.event_time
        if timing is None or not timing.columns:
            raise InvalidArgumentError(
                f"{call}: no stream has an event time; name their columns of time stamps, as in "
                'time=Time(event_time={"a": "at", "b": "at"})'
            )
        if isinstance(number, int):
            return number
        return timing.watermark_us(self.spec.streams, watermark)

    def _arrived(self, stream: str, batch: BatchLike, call: str) -> pa.RecordBatch:
        """A batch as the local join takes it."""
        if stream in getattr(self.spec, "operations", {}):
            return arrow_batch(batch, call)  # with the operation column, which is not stored
        return as_batch(batch, self.spec.streams[stream], call)

    def _shown(self, results: Results) -> Results:
        """The results of the local join as users see them."""
        results.inside(self._guard.calling)
        results.schema = self.spec.output_schema
        return results

    @property
    def store(self) -> MultimapStore:
        """The state, for those who look at it between calls."""
        return self._store

    @property
    def local_join(self) -> LocalJoin:
        """The local join, for what only its kind has."""
        return self._join

    @property
    def counts(self) -> Mapping[str, int]:
        """The join's counters since it was opened, by name; ``late_rows`` for example."""
        return self._join.counts

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``, the late rows of the last batch, as they came."""
        return self._join.late_rows

    @property
    def malformed_rows(self) -> pa.RecordBatch | None:
        """With ``malformed="side"``, the malformed rows of the last batch, as they came."""
        found: pa.RecordBatch | None = getattr(self._join, "malformed_rows", None)
        return found

    def commit(self) -> None:
        """Make everything that was fed durable, so that the same join on ``state_dir`` finds it.

        Raises:
            InvalidArgumentError: A join whose results wait has some that were not read. Its state
                depends on them.
        """
        with self._guard.calling():
            self._join.finish()
            self._store.commit()

    def stats(self) -> StoreStats:
        """Return memory, disk and counters of the state."""
        return self._store.stats()

    def _as_tables(self) -> Iterable[ShownTable]:
        """Streams, join, counters and state."""
        title, spec = kind_of(self.spec).name, self.spec
        return join_shown(title, spec.streams, spec.described(), self.counts, self._store)

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        steps = self._give_up, self._join.close, self._store.close, self._remove_temporary
        self._guard.close(*steps)

    def _give_up(self) -> None:
        """Give up unread results, which hold what they read open."""
        if self._unfinished is not None:
            self._unfinished.let_go()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
