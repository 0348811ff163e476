"""The join for plain Python: Arrow batches in, Arrow batches out, no Spark."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from tempfile import TemporaryDirectory

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.arrow_views import Views
from lsmstate.joins.local.changes.input import check_unmatched
from lsmstate.joins.local.changes.multi_key_join import GraphChangeJoin
from lsmstate.joins.local.changes.one_key_join import ChangeJoin
from lsmstate.joins.local.inner.binary_tree_join import TreeJoin
from lsmstate.joins.local.inner.binary_tree_order import BEST, Sample, TriedOrders, best_tree
from lsmstate.joins.local.inner.multi_key_join import GraphJoin
from lsmstate.joins.local.inner.umjoin import UMJoin
from lsmstate.joins.local.parts.results import Results, check_finished
from lsmstate.joins.local.rooted.change_join import RootedChangeJoin
from lsmstate.joins.local.timed.event_time_join import EventTimeJoin
from lsmstate.joins.local.timed.final_join import FinalJoin
from lsmstate.joins.recorded_join import KeptJoin
from lsmstate.joins.specs.binary_tree import BinaryTree, Order
from lsmstate.joins.specs.changes import FINAL, ChangeSpec, GraphChangeSpec
from lsmstate.joins.specs.changes_multi_key import RootedChangeSpec
from lsmstate.joins.specs.choose import ChangingSpec, create_join
from lsmstate.joins.specs.event_time import EventTime, Retention, TimeOptions, create_timed
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams
from lsmstate.joins.specs.typed_condition import How, in_text, typed_condition
from lsmstate.opening import open_store
from lsmstate.options import Options, parse_bytes
from lsmstate.schema.columns import by_name
from lsmstate.stats import StoreStats
from lsmstate.store import MultimapStore, StreamSchema
from lsmstate.store_base.checks import check_is_batch, nearest

#: How several streams are joined; see MultiwayJoin.
ALGORITHMS = ("umjoin", "tree")

Spec = JoinSpec | GraphSpec | ChangingSpec | FinalSpec
Operator = (
    UMJoin
    | GraphJoin
    | ChangeJoin
    | GraphChangeJoin
    | RootedChangeJoin
    | TreeJoin
    | EventTimeJoin
    | FinalJoin
)


class MultiwayJoin:
    """Several streams joined over everything that was fed to it and is not forgotten.

        with MultiwayJoin({"cu": schema, "sr": schema2}, on="cu.id = sr.cu_id") as join:
            for result in join.process("cu", batch):
                ...

    ``on`` is SQL text of equalities, which may be by several keys (``a.x = b.x AND b.y = c.y``), or
    the columns of one common key. ``memory`` caps what the state holds in memory. With ``path``
    the state is kept there and found again by the same join (another is refused); without, it lies
    in a temporary directory that ``close`` removes.

    ``algorithm="umjoin"`` stores each input and probes one after another; with
    ``backend="memory"`` it is the operator known as MultiStream. ``algorithm="tree"``, to compare
    with, is the binary join tree: it stores the intermediate results too. ``order`` is its order:
    ``["a", "b", "c"]``, or nested, ``["a", ["b", "c"]]``; default: that of the streams; a kept
    state keeps its order. ``order="best"`` tries all of them on ``sample``, some rows of each
    stream (``{"a": batch, ...}``) that match and are not part of the join, and takes the one that
    stores and fetches the fewest bytes: ``tried_orders`` shows them all. Where ``path`` holds a
    state its order is taken, and no sample looked at.

    **Time.** ``event_time`` names streams' columns of time stamps. Beside equalities ``on`` may
    then have time intervals (``a.at BETWEEN b.at - INTERVAL 1 HOUR AND b.at``), and ``retention``
    says how long rows of a stream match at most (``{"a": "7 days"}``). ``advance`` tells how far
    time has come: rows that can match no row to come, or are past their retention, are forgotten
    exactly then, and their disk is reclaimed. Rows that come with a time that is not after the
    watermark are *late*: left out and counted in ``late_count`` (``late="drop"``), matched with
    what is still there (``"join"``), or left out and handed over in ``late_rows`` (``"side"``).

    **Beyond inner**: ``how`` is the join type of the streams after the first
    ("inner", "left", "right", "full", "semi" or "anti"), or a mapping of streams to types; or
    ``on`` says all of it, as in ``"cu LEFT JOIN sr ON cu.id = sr.cu_id"``. Where a later row can
    take back a result, ``emit="changes"`` puts a column ``op`` first: ``+I`` for a result that
    comes, ``-D`` for one that is taken back. ``changes`` names the operation column (+I, -U, +U,
    -D) of streams that are changelogs themselves; ``unmatched`` says what becomes of a retraction
    of a row that is not there: "count" (and leave out) or "error". With time intervals and event
    times rows are forgotten when no change in time can touch a result they are part of, and late
    changes are left out: what stands is the join of the others. Joins of types other than inner may
    have conditions beside their keys, which compare columns and constants of one type (``AND
    (sr.x > cu.y OR sr.x IS NULL)``).

    With ``emit="final"`` nothing is taken back: a result with a row of every stream comes when its
    last row does, any other from ``advance``, when no row can come any more that would change it.
    ``on`` then has time intervals that say how long that is, and may be by several keys; streams
    are joined one after the other. Semi and anti joins give all their results from ``advance``.
    """

    def __init__(
        self,
        streams: Mapping[str, pa.Schema],
        on: Condition,
        *,
        how: How = "inner",
        emit: str = "append",
        changes: Mapping[str, str] | None = None,
        unmatched: str = "count",
        memory: int | str = "64m",
        backend: str = "lsm",
        path: str | None = None,
        piece_bytes: int = 1 << 20,
        algorithm: str = "umjoin",
        order: Order | None = None,
        sample: Sample | None = None,
        event_time: Mapping[str, str] | None = None,
        retention: Retention | None = None,
        late: str = "drop",
    ) -> None:
        check_unmatched(unmatched)
        check_streams(streams)
        told = TimeOptions(event_time or {}, retention or {}, late)
        self.spec, timing = _spec_of(streams, on, how, emit, changes, told)
        self._declared = dict(streams)
        self._views = Views(streams)
        inside = self.spec
        if self._views.any:
            inside, timing = _spec_of(self._views.streams, on, how, emit, changes, told)
        _check_algorithm(inside, algorithm, order, sample, timing)
        kept = None if path is None else KeptJoin(path, backend, self.spec, timing)
        if kept is not None:
            kept.check()
        options = Options(memory_bytes=parse_bytes(memory))
        #: With ``order="best"`` all orders and what they cost; None if a kept state had one.
        self.tried_orders: TriedOrders | None = None
        tree: BinaryTree | None = None
        if algorithm == "tree":
            assert isinstance(inside, JoinSpec | GraphSpec)
            if order == BEST:
                some = sample and {name: self._views.plain(name, r) for name, r in sample.items()}
                tree, self.tried_orders = best_tree(inside, some, path, backend, options)
            else:
                tree = BinaryTree.create(inside, list(streams) if order is None else order)
        schemas, operator = _operator(inside, tree, timing, unmatched, piece_bytes)
        self._unfinished: Results | None = None
        with ExitStack() as opened:
            directory = path or opened.enter_context(TemporaryDirectory(prefix="lsmstate-"))
            self._store = open_store(directory, schemas, backend=backend, options=options)
            opened.callback(self._store.close)
            if kept is not None:
                kept.keep()
            self._join = operator(self._store)
            self._opened = opened.pop_all()

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of every result; see ``output_names`` for how they are called."""
        return self.spec.output_schema

    def process(self, stream: str, batch: pa.RecordBatch) -> Results:
        """Store the batch now; return what it newly matches, in bounded pieces.

        Consume or close the results before the next call.
        """
        if stream in self.spec.streams:
            check_is_batch(f"process({stream!r})", batch)
            batch = by_name(batch, self._declared[stream], f"process({stream!r})")
        self._came_in = batch.schema
        batch = self._views.plain(stream, batch)
        self._unfinished = self._shown(self._join.process(stream, batch))
        return self._unfinished

    def _shown(self, results: Results) -> Results:
        """With the types that are declared."""
        if not self._views.any:
            return results
        schema = self.output_schema
        return results.through(lambda piece: self._views.declared(piece, schema))

    def advance(self, watermark: datetime) -> Results:
        """No row with a time up to the watermark will come any more: forget what no later one can
        match, and with ``emit="final"`` return the results that are known for good by it, to be
        consumed or closed before the next call (otherwise there are none). A lower watermark than
        before changes nothing; ``commit`` keeps it.

        InvalidArgumentError if results were neither consumed nor closed (they may need what would
        be forgotten), if no stream has an event time, or the watermark has no time zone although
        one of them has; one with a zone is taken as UTC for those without.
        """
        if self._timed is None or not self._timed.event_time.columns:
            raise InvalidArgumentError(
                f"advance({watermark!r}): no stream has an event time; name their columns of time "
                'stamps, as in event_time={"a": "at", "b": "at"}'
            )
        check_finished(f"advance({watermark!r})", self._unfinished)
        watermark_us = self._timed.event_time.watermark_us(self.spec.streams, watermark)
        if isinstance(self._timed, FinalJoin):
            self._unfinished = self._shown(self._timed.advance(watermark_us))
            return self._unfinished
        self._timed.advance(watermark_us)
        return Results(iter(()))

    @property
    def event_time(self) -> EventTime | None:
        """Streams' event times, and how long their rows are kept; None: all rows, for ever."""
        return self._timed.event_time if self._timed else None

    @property
    def late_count(self) -> int:
        """Rows that came late since the join was opened; with ``late="join"`` too."""
        return self._timed.late_count if self._timed else 0

    @property
    def late_rows(self) -> pa.RecordBatch | None:
        """With ``late="side"``, the late rows of the last batch, as they came."""
        late = self._timed.late_rows if self._timed else None
        if late is None or not self._views.any:
            return late
        return self._views.declared(late, self._came_in)

    @property
    def _timed(self) -> EventTimeJoin | FinalJoin | None:
        return self._join if isinstance(self._join, EventTimeJoin | FinalJoin) else None

    @property
    def unmatched_retractions(self) -> int:
        """Retractions left out so far, because there was no such row."""
        if isinstance(self._join, ChangeJoin | GraphChangeJoin | RootedChangeJoin | EventTimeJoin):
            return self._join.unmatched_retractions
        return 0

    def commit(self) -> None:
        """Make everything fed so far durable: opening ``path`` again finds it. InvalidArgumentError
        if a join with ``emit="final"`` has results that were neither consumed nor closed: its state
        follows from them."""
        if isinstance(self._join, FinalJoin):
            self._join.finish()
        self._store.commit()

    def stats(self) -> StoreStats:
        """Memory, disk and counters of the state as of now."""
        return self._store.stats()

    def close(self) -> None:
        """Release memory, locks and the temporary directory. A second call does nothing."""
        self._opened.close()

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
) -> tuple[Spec, EventTime | None]:
    """What is joined, and the event times of a join that forgets by them."""
    typed = typed_condition({name: s.names for name, s in streams.items()}, on, how)
    if typed.tree is not None and emit == FINAL and not changes:
        graph = GraphSpec.create(streams, in_text(typed), splits=True)
        return FinalSpec.of(graph, typed.tree, *told), None
    if typed.tree is None and emit in ("append", FINAL) and not changes:
        return create_timed(streams, typed.on, *told)
    spec = create_join(streams, on, how, emit, changes, told)
    timing = spec.event_time if isinstance(spec, ChangingSpec) else None
    if timing is None:
        _check_keeps_all(told)
    return spec, timing


def _check_keeps_all(told: TimeOptions) -> None:
    """InvalidArgumentError where a join that forgets nothing is told of time."""
    given = {"event_time": told.columns, "retention": told.retention, "late": told.late}
    for name, value in given.items():
        if value and value != "drop":
            raise InvalidArgumentError(
                f"{name}={value!r} applies to append-only inner joins; leave it out, leave out "
                "how, emit and changes, or write time intervals into the condition"
            )


def _operator(
    spec: Spec,
    tree: BinaryTree | None,
    timing: EventTime | None,
    unmatched: str,
    piece_bytes: int,
) -> tuple[Sequence[StreamSchema], Callable[[MultimapStore], Operator]]:
    """The streams of the join's store, and what makes the operator over it."""
    if isinstance(spec, FinalSpec):
        return spec.stream_schemas, lambda store: FinalJoin(spec, store, piece_bytes)
    if isinstance(spec, GraphChangeSpec | RootedChangeSpec) and timing is not None:
        return spec.stream_schemas, lambda store: EventTimeJoin(
            spec, timing, store, piece_bytes, unmatched=unmatched
        )
    if isinstance(spec, ChangeSpec):
        return spec.stream_schemas, lambda store: ChangeJoin(spec, store, piece_bytes, unmatched)
    if isinstance(spec, GraphChangeSpec):
        return spec.stream_schemas, lambda store: GraphChangeJoin(
            spec, store, piece_bytes, unmatched
        )
    if isinstance(spec, RootedChangeSpec):
        return spec.stream_schemas, lambda store: RootedChangeJoin(
            spec, store, piece_bytes, unmatched
        )
    if tree is not None:
        return tree.stream_schemas, lambda store: TreeJoin(tree, store, piece_bytes)
    if timing is not None:
        return timing.store_streams(spec), lambda store: EventTimeJoin(
            spec, timing, store, piece_bytes
        )
    if isinstance(spec, GraphSpec):
        return spec.stream_schemas, lambda store: GraphJoin(spec, store, piece_bytes)
    return spec.stream_schemas, lambda store: UMJoin(spec, store, piece_bytes)


def _check_algorithm(
    spec: Spec,
    algorithm: str,
    order: Order | None,
    sample: Sample | None,
    timing: EventTime | None,
) -> None:
    """InvalidArgumentError where options of ``algorithm="tree"`` do not go with the others."""
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
    if algorithm == "tree" and timing is not None:
        raise InvalidArgumentError(
            "algorithm='tree' joins over the full history; leave out algorithm, or event_time, "
            "retention and time intervals"
        )
