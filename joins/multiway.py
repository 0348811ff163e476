"""MultiwayJoin: the join for plain Python, with Arrow batches in and Arrow batches out."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Final, Literal, get_args

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.arrow_views import Views
from lsmstate.joins.asked_condition import AskedCondition
from lsmstate.joins.conditions.names import named
from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, check_unmatched
from lsmstate.joins.local.inner.binary_tree_order import BEST, Sample, TriedOrders, best_tree
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.options import (
    GROUPS,
    STATE,
    TIME,
    Emit,
    State,
    Time,
    Unmatched,
    check_most_results,
    refuse_most_results,
    refuse_other_fields,
)
from lsmstate.joins.protocols import Batch, Context, Spec
from lsmstate.joins.recorded_join import KeptJoin
from lsmstate.joins.specs.binary_tree import BinaryTree, Order
from lsmstate.joins.specs.changes import FINAL
from lsmstate.joins.specs.choose import ChangingSpec, create_join
from lsmstate.joins.specs.event_time import EventTime, TimeOptions, create_timed
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_choice import theta_spec
from lsmstate.joins.specs.typed_condition import How, in_text, typed_condition
from lsmstate.joins.specs.within import with_distance
from lsmstate.local_directory import directory_path
from lsmstate.opening import open_store
from lsmstate.option_names import names_checked
from lsmstate.schema.batches import as_batch
from lsmstate.stats import StoreStats
from lsmstate.store import BatchLike
from lsmstate.store_base.checks import nearest
from lsmstate.store_base.guard import StoreGuard

#: How several streams are joined; ``MultiwayJoin`` describes them.
Algorithm = Literal["umjoin", "tree"]
ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)

_TIME_HERE: Final = ("event_time", "retention", "within", "late")
_STATE_HERE: Final = ("memory", "backend", "state_dir", "options")
_NO_TIME: Final = 'name its column of time stamps, as in time=Time(event_time={"a": "at"})'
_ON_SPARK: Final = "is an option on Spark only; leave it out"
#: Fields of Options that are said elsewhere.
_ELSEWHERE: Final = {"memory_bytes": "give memory=... instead"}


class MultiwayJoin:
    """Join several streams over everything that was fed and is not forgotten.

    **Keys.** Equalities of columns of two streams, or of nested fields, are keys. Streams need not
    share one key: ``a.x = b.x AND b.y = c.y`` joins three streams. A null matches nothing.

    **Event time.** ``Time(event_time=...)`` names the time stamps of streams. ``on`` may then have
    time intervals (``a.at BETWEEN b.at - INTERVAL 1 HOUR AND b.at``). ``advance`` moves the
    watermark: rows that no later row can match, or whose retention is over, are forgotten, and
    their disk is freed. A row is *late* if its time is not after the watermark.

    **Other join types.** ``how`` gives the type of each join, or ``on`` is a whole FROM clause.
    Conditions beside the keys (``AND (sr.x > cu.y + 1 OR sr.x IS NULL)``) say which rows match; in
    inner joins they filter the results. They mean what they mean in Spark in ANSI mode.

    **Changelogs.** With ``emit="changes"`` a result may be retracted. The first column ``op`` is
    ``+I`` for a new result and ``-D`` for a retracted one. With time intervals, a row is forgotten
    when no change in time can touch a result of it, and late changes are left out.

    **Final results.** With ``emit="final"`` no result is retracted. A result with a row of every
    stream comes with its last row. Any other result comes from ``advance``, when no row can come
    that would change it. Semi and anti joins give all results from ``advance``. ``on`` needs time
    intervals.

    Args:
        streams: Columns of the streams by name, at least two streams.
        on: What is joined: SQL conditions joined by AND, a FROM clause (``"cu
            LEFT JOIN sr ON cu.id = sr.cu_id"``), the key columns of each stream, or the key columns
            that all streams have.
        how: Join type of the streams after the first: "inner", "left", "right", "full", "semi" or
            "anti"; or a mapping of streams to types.
        emit: "append": results never change. "changes": results may be retracted. "final": results
            come once, when they are final.
        changes: Operation column of each stream that is a changelog. It holds ``+I``, ``-U``,
            ``+U`` or ``-D`` and is not part of the result.
        unmatched: What becomes of a retraction of a row that is not stored: "count" ignores and
            counts it, "error" raises InvalidArgumentError.
        most_results: Most results for each row of a batch; more raise InvalidArgumentError. For
            joins whose streams are not all connected by equalities. Default: more than 1,000 are
            logged.
        piece_bytes: Most bytes of a piece of the results, unless a row is larger.
        algorithm: "umjoin" stores each stream and probes one stream after another (UMJoin; with
            ``backend="memory"`` it is the operator known as MultiStream). "tree" is the binary join
            tree for comparison, which stores intermediate results too.
        order: Order of the tree: ``["a", "b", "c"]``, nested as in ``["a", ["b", "c"]]``, or
            "best". Default: that of the streams. A stored state keeps its order. "best" tries all
            orders on ``sample`` and takes the one that stores and fetches the fewest bytes.
        sample: For ``order="best"``: some rows of each stream that match. They do not become part
            of the join.
        time: Event times of the streams, how long rows are kept, and what becomes of late ones:
            ``Time(event_time=..., ...)``, without ``late_batches`` and ``result_time``.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``, with
            ``memory``, ``backend``, ``state_dir`` and ``options``. The same join finds a state in
            ``state_dir`` again; another one is refused.

    Attributes:
        tried_orders: With ``order="best"`` all orders and their costs; None if the order was
            stored.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Cost:
        Each row is stored once per index of its stream. It is probed in each other stream until one
        has no match.

    Example:
        ```python
        with MultiwayJoin({"cu": customers, "sr": returns}, on="cu.id = sr.cu_id") as join:
            for result in join.process("cu", batch):
                print(result.num_rows)
        ```
    """

    @names_checked(GROUPS)
    def __init__(
        self,
        streams: Mapping[str, pa.Schema],
        on: Condition,
        *,
        how: How = "inner",
        emit: Emit = "append",
        changes: Mapping[str, str] | None = None,
        unmatched: Unmatched = "count",
        most_results: float | None = None,
        piece_bytes: int = 1 << 20,
        algorithm: Algorithm = "umjoin",
        order: Order | None = None,
        sample: Sample | None = None,
        time: Time = TIME,
        state: State = STATE,
    ) -> None:
        refuse_other_fields(time, _TIME_HERE, _ON_SPARK)
        refuse_other_fields(state, _STATE_HERE, _ON_SPARK)
        check_unmatched(unmatched)
        check_streams(streams)
        _check_kinds(on, piece_bytes)
        check_most_results(most_results)
        told = TimeOptions(time.event_time or {}, time.retention or {}, time.late)
        path, backend = state.state_dir, state.backend
        if path is not None:
            path = directory_path(path, "state_dir")
        self._declared = dict(streams)
        columns = {name: schema.names for name, schema in streams.items()}
        on = with_distance(on, time.within, told.columns, columns, _NO_TIME)
        theta = theta_spec(streams, on, how, emit, changes, told)
        if theta is None:
            refuse_most_results(most_results)
            self._asked = AskedCondition.of(streams, on, how, changes)
        else:
            on = theta.on
            self._asked = AskedCondition.unfiltered(streams, on)
        streams, on = self._asked.streams, self._asked.on
        self.spec: Spec = theta or _spec_of(streams, on, how, emit, changes, told)
        self._views = Views(streams)
        inside = self.spec
        if self._views.any and theta is not None:
            inside = ThetaSpec.create(self._views.streams, theta.on)
        elif self._views.any:
            inside = _spec_of(self._views.streams, on, how, emit, changes, told)
        _check_algorithm(inside, algorithm, order, sample)
        filters = [str(each) for each in self._asked.filters]
        kept = None if path is None else KeptJoin(path, backend, self.spec, filters)
        if kept is not None:
            kept.check()
        options = state.store_options(_ELSEWHERE)
        if path is None and options.sync is None:
            # A temporary directory is gone after a power cut anyway: nothing in it is synced.
            options = replace(options, sync="never")
        #: With ``order="best"`` all orders and what they cost; None if a kept state had one.
        self.tried_orders: TriedOrders | None = None
        tree: BinaryTree | None = None
        if algorithm == "tree":
            assert isinstance(inside, JoinSpec | GraphSpec)
            if order == BEST:
                some = None if sample is None else self._plain_sample(sample)
                tree, self.tried_orders = best_tree(inside, some, path, backend, options)
            else:
                tree = BinaryTree.create(inside, list(streams) if order is None else order)
        context = Context(piece_bytes=piece_bytes, unmatched=unmatched, most_results=most_results)
        self._unfinished: Results | None = None
        with ExitStack() as opened:
            self._temporary: TemporaryDirectory[str] | None = None
            if path is None:
                self._temporary = TemporaryDirectory(prefix="lsmstate-")
                opened.enter_context(self._temporary)
                path = self._temporary.name
            joined: Spec = tree or inside
            self._store = open_store(path, joined.stream_schemas, backend=backend, options=options)
            opened.callback(self._store.close)
            if kept is not None:
                kept.keep()
            self._join = local_join(joined, self._store, context)
            opened.pop_all()  # from here on, ``close`` releases it
        self._guard = StoreGuard(str(path), "join")

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of every result. ``output_names`` says how they are called."""
        return self._asked.shown_schema(self.spec.output_schema)

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
            rows = as_batch(batch, self._declared[stream], f"process({stream!r})")
            came_in = rows.schema
            rows = self._inside(stream, rows)
            self._unfinished = self._shown(self._join.process(Batch(stream, rows)))
            self._came_in = came_in
            return self._unfinished

    def _inside(self, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as the join works with them: with computed columns, in plain types."""
        return self._views.plain(stream, self._asked.computed.added(stream, rows))

    def _plain_sample(self, sample: Sample) -> Sample:
        """The sample in plain types; what is no stream is refused with the sample."""
        declared = self._declared
        named("sample", sample, '{"a": rows}')
        return {
            name: self._inside(name, as_batch(rows, declared[name], f"sample[{name!r}]"))
            if name in declared
            else rows
            for name, rows in sample.items()
        }

    def _shown(self, results: Results) -> Results:
        """The results that keep all conditions, with the types of the declared columns."""
        results.inside(self._guard.calling)
        if self._views.any:
            schema = self.spec.output_schema
            results = results.through(lambda piece: self._views.declared(piece, schema))
        results.schema = self.output_schema
        return self._asked.shown(results)

    def advance(self, watermark: datetime) -> Results:
        """Set the watermark: no row with a time up to it will come any more.

        Rows that no later row can match are forgotten. A lower watermark than before changes
        nothing. ``commit`` stores the watermark.

        Args:
            watermark: The watermark. With a time zone, it is taken as UTC for event times without
                one.

        Returns:
            With ``emit="final"``, the results that are now final. Read them to the end, or close
            them, before the next call. Otherwise nothing.

        Raises:
            InvalidArgumentError: Earlier results are not read, no stream has an event time, or the
                watermark has no time zone although an event time has one.
        """
        timing = self.event_time
        if timing is None or not timing.columns:
            raise InvalidArgumentError(
                f"advance({watermark!r}): no stream has an event time; name their columns of time "
                'stamps, as in time=Time(event_time={"a": "at", "b": "at"})'
            )
        with self._guard.calling():
            check_finished(f"advance({watermark!r})", self._unfinished)
            watermark_us = timing.watermark_us(self.spec.streams, watermark)
            self._unfinished = self._shown(self._join.advance(watermark_us))
            return self._unfinished

    @property
    def event_time(self) -> EventTime | None:
        """What the join knows of event time; None if it keeps all rows for ever.

        ``columns`` has the event-time column of each stream, and ``kept_us`` how many microseconds
        a row is kept after its event time (None: for ever).
        """
        return self.spec.event_time

    @property
    def counts(self) -> Mapping[str, int]:
        """The join's counters since it was opened, by name; ``late_rows`` for example."""
        return self._join.counts

    @property
    def late_count(self) -> int:
        """Number of rows that came late since the join was opened, also with ``late="join"``."""
        return self._join.counts.get(LATE_ROWS, 0)

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``, the late rows of the last batch, as they came."""
        late = self._join.late_rows
        late = late if late is None else self._asked.computed.dropped(late)
        if late is None or not self._views.any:
            return late
        return self._views.declared(late, self._came_in)

    @property
    def unmatched_retractions(self) -> int:
        """Number of retractions ignored so far because the row was not stored."""
        return self._join.counts.get(UNMATCHED_RETRACTIONS, 0)

    def commit(self) -> None:
        """Make everything that was fed durable, so that the same join on ``state_dir`` finds it.

        Raises:
            InvalidArgumentError: A join with ``emit="final"`` has results that were not read. Its
                state depends on them.
        """
        with self._guard.calling():
            self._join.finish()
            self._store.commit()

    def stats(self) -> StoreStats:
        """Return memory, disk and counters of the state."""
        return self._store.stats()

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._guard.close(self._give_up, self._store.close, self._remove_temporary)

    def _give_up(self) -> None:
        """Give up unread results, which hold what they read open."""
        if self._unfinished is not None:
            self._unfinished.let_go()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> "MultiwayJoin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spec_of(
    streams: Mapping[str, pa.Schema],
    on: Condition,
    how: How,
    emit: str,
    changes: Mapping[str, str] | None,
    told: TimeOptions,
) -> Spec:
    """What is joined, with the event times of a join that forgets rows by them."""
    typed = typed_condition({name: s.names for name, s in streams.items()}, on, how)
    if typed.tree is not None and emit == FINAL and not changes:
        graph = GraphSpec.create(streams, in_text(typed), splits=True)
        return FinalSpec.of(graph, typed.tree, *told)
    if typed.tree is None and emit in ("append", FINAL) and not changes:
        return create_timed(streams, typed.on, *told)
    spec = create_join(streams, on, how, emit, changes, told)
    if spec.event_time is None:
        _check_keeps_all(told)
    return spec


def _check_kinds(on: object, piece_bytes: object) -> None:
    """InvalidArgumentError for values of other types than the signature has."""
    if not isinstance(on, str | Mapping | Sequence):
        raise InvalidArgumentError(
            f'on={on!r}: give a condition in SQL, such as "a.id = b.a_id", or the key columns: '
            '{"a": ["id"], "b": ["a_id"]}, or ["id"]'
        )
    if isinstance(piece_bytes, bool) or not isinstance(piece_bytes, int):
        raise InvalidArgumentError(f"piece_bytes={piece_bytes!r}: give a number of bytes")


def _check_keeps_all(told: TimeOptions) -> None:
    """InvalidArgumentError if a join that forgets nothing has options of event time."""
    given = {"event_time": told.columns, "retention": told.retention, "late": told.late}
    for name, value in given.items():
        if value and value != "drop":
            raise InvalidArgumentError(
                f"{name}={value!r} applies to append-only inner joins; leave it out, leave out "
                "how, emit and changes, or write time intervals into the condition"
            )


def _check_algorithm(
    spec: Spec,
    algorithm: str,
    order: Order | None,
    sample: Sample | None,
) -> None:
    """InvalidArgumentError if options of ``algorithm="tree"`` do not fit the others."""
    if algorithm not in ALGORITHMS:
        raise InvalidArgumentError(
            f"algorithm={algorithm!r} is unknown{nearest(algorithm, ALGORITHMS)}"
        )
    if algorithm != "tree" and order is not None:
        raise InvalidArgumentError(f"order={order!r} applies to algorithm='tree'; leave order out")
    if sample is not None and order != BEST:
        raise InvalidArgumentError(
            f"sample applies to order='best', and this is order={order!r}; leave sample out"
        )
    if algorithm == "tree" and isinstance(spec, ChangingSpec | FinalSpec):
        raise InvalidArgumentError(
            "algorithm='tree' applies to append-only inner joins; leave algorithm out for other "
            "join types and changelogs"
        )
    if algorithm == "tree" and isinstance(spec, ThetaSpec):
        raise InvalidArgumentError(
            f"algorithm='tree' joins by equalities alone, and the condition is {spec.on!r}; leave "
            "algorithm out, or filter the results for what is no equality"
        )
    if algorithm == "tree" and spec.event_time is not None:
        raise InvalidArgumentError(
            "algorithm='tree' joins over the full history; leave out algorithm, or event_time, "
            "retention and time intervals"
        )
