"""MultiwayJoin: the join for plain Python, with Arrow batches in and Arrow batches out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

import pyarrow as pa

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.arrow_views import Views
from lsmstate.joins.asked_condition import AskedCondition
from lsmstate.joins.conditions.names import named
from lsmstate.joins.kinds import kind_of
from lsmstate.joins.local.changes.input import UNMATCHED_RETRACTIONS, check_unmatched
from lsmstate.joins.local.inner.binary_tree_order import BEST, Sample, TriedOrders, best_tree
from lsmstate.joins.local.parts.results import Results
from lsmstate.joins.local.timed.event_time_join import LATE_ROWS
from lsmstate.joins.options import (
    GROUPS,
    NO_BUCKETS,
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
from lsmstate.joins.protocols import Spec
from lsmstate.joins.shown import join_shown
from lsmstate.joins.spec_join import ELSEWHERE, SpecJoin
from lsmstate.joins.specs.binary_tree import Order
from lsmstate.joins.specs.changes import FINAL
from lsmstate.joins.specs.choose import create_join
from lsmstate.joins.specs.event_time import TimedThetaSpec, TimeOptions, create_timed
from lsmstate.joins.specs.final import FinalSpec
from lsmstate.joins.specs.interval_warnings import warn_of_kept_rows
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams
from lsmstate.joins.specs.similarity_condition import SimilarCondition, similar_condition
from lsmstate.joins.specs.theta import ThetaSpec
from lsmstate.joins.specs.theta_choice import filtered_theta, is_outer, theta_spec
from lsmstate.joins.specs.theta_sides import ThetaChangeSpec, ThetaFinalSpec
from lsmstate.joins.specs.typed_condition import How, in_text, typed_condition
from lsmstate.joins.specs.within import with_time
from lsmstate.option_names import names_checked
from lsmstate.schema.batches import as_batch
from lsmstate.shown import ShownTable
from lsmstate.store import BatchLike
from lsmstate.store_base.checks import nearest

#: How several streams are joined; ``MultiwayJoin`` describes them.
Algorithm = Literal["umjoin", "tree"]
ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)

_TIME_HERE: Final = ("event_time", "retention", "within", "window", "late")
_NO_TIME: Final = 'name its column of time stamps, as in time=Time(event_time={"a": "at"})'
_ON_SPARK: Final = "is an option on Spark only; leave it out"


class MultiwayJoin(SpecJoin):
    """Join several streams over everything that was fed and is not forgotten.

    **Keys.** Equalities of columns of two streams, or of nested fields, are keys. Streams need not
    share one key: ``a.x = b.x AND b.y = c.y`` joins three streams. A null matches nothing.

    **Any condition.** Inner joins, and joins of two streams of any type, need no equality:
    ``a LEFT JOIN b ON a.x BETWEEN b.low AND b.high``.

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

    @names_checked(GROUPS, NO_BUCKETS)
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
        check_unmatched(unmatched)
        check_streams(streams)
        _check_on(on)
        check_most_results(most_results)
        told = TimeOptions(time.event_time or {}, time.retention or {}, time.late)
        self._declared = dict(streams)
        columns = {name: schema.names for name, schema in streams.items()}
        on, how = with_time(on, time, told.columns, columns, _NO_TIME, how)
        written = on
        is_full = not is_outer(how) and not changes and not (told.columns or told.retention)
        is_plain = is_full and emit in ("append", FINAL) and algorithm == "umjoin"
        similar = similar_condition(streams, on) if is_plain and most_results is None else None
        beside = None if similar is None else _beside(streams, on, similar)
        theta = theta_spec(streams, on, how, emit, changes, told) if beside is None else None
        if theta is None and algorithm == "tree":
            theta = filtered_theta(streams, on, how, emit, changes, told)
        if beside is not None:
            self._asked = beside
        elif theta is None:
            refuse_most_results(most_results)
            self._asked = AskedCondition.of(streams, on, how, changes)
        else:
            self._asked = AskedCondition.unfiltered(streams, on)
        streams, on = self._asked.streams, self._asked.on
        spec: Spec
        if similar is not None and beside is not None:
            spec = similar.spec
        else:
            spec = theta or _spec_of(streams, on, how, emit, changes, told)
        if theta is not None and theta.sides is not None and theta.event_time is None:
            _check_keeps_all(told)
        warn_of_kept_rows(self._declared, written, told.columns, _named_time)
        self._views = Views(streams)
        plain = spec
        if self._views.any and theta is not None:
            plain = theta_spec(self._views.streams, on, how, emit, changes, told) or theta
        elif self._views.any:
            plain = _spec_of(self._views.streams, on, how, emit, changes, told)
        tree = kind_of(plain).tree
        _check_algorithm(plain, algorithm, order, sample)
        #: With ``order="best"`` all orders and what they cost; None if a kept state had one.
        self.tried_orders: TriedOrders | None = None

        def inside() -> Spec:
            if algorithm != "tree" or tree is None:
                return plain
            if order != BEST:
                return tree(plain, list(streams) if order is None else order)
            assert isinstance(plain, JoinSpec | GraphSpec)
            some = None if sample is None else self._plain_sample(sample)
            best, self.tried_orders = best_tree(
                plain, some, state.state_dir, state.backend, state.store_options(ELSEWHERE)
            )
            return best

        super().__init__(
            spec,
            piece_bytes=piece_bytes,
            unmatched=unmatched,
            most_results=most_results,
            state=state,
            filters=[str(each) for each in self._asked.filters],
            inside=inside,
        )

    @property
    def output_schema(self) -> pa.Schema:
        """Columns of every result. ``output_names`` says how they are called."""
        return self._asked.shown_schema(self.spec.output_schema)

    def _arrived(self, stream: str, batch: BatchLike, call: str) -> pa.RecordBatch:
        rows = as_batch(batch, self._declared[stream], call)
        self._came_in = rows.schema
        return self._inside(stream, rows)

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
        results = super()._shown(results)
        if self._views.any:
            schema = self.spec.output_schema
            results = results.through(lambda piece: self._views.declared(piece, schema))
        return self._asked.shown(results)

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

    def _as_tables(self) -> Iterable[ShownTable]:
        """Streams, join, counters and state."""
        described = {**self.spec.described(), "conditions": list(map(str, self._asked.filters))}
        if isinstance(self.spec, ThetaSpec | TimedThetaSpec | ThetaChangeSpec | ThetaFinalSpec):
            described["condition"] = "\n".join(self.spec.explained())
        title = f"MultiwayJoin: {kind_of(self.spec).name}"
        return join_shown(title, self._declared, described, self.counts, self._store)

    @property
    def unmatched_retractions(self) -> int:
        """Number of retractions ignored so far because the row was not stored."""
        return self._join.counts.get(UNMATCHED_RETRACTIONS, 0)


def _named_time(columns: Mapping[str, str]) -> str:
    named = ", ".join(f'"{stream}": "{column}"' for stream, column in columns.items())
    return f"name the column, as in time=Time(event_time={{{named}}})"


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


def _check_on(on: object) -> None:
    """InvalidArgumentError for a condition of another type than the signature has."""
    if not isinstance(on, str | Mapping | Sequence):
        raise InvalidArgumentError(
            f'on={on!r}: give a condition in SQL, such as "a.id = b.a_id", or the key columns: '
            '{"a": ["id"], "b": ["a_id"]}, or ["id"]'
        )


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
    full_history = getattr(spec, "joined", spec)
    if algorithm == "tree" and kind_of(full_history).tree is None:
        raise InvalidArgumentError(
            "algorithm='tree' applies to append-only inner joins; leave algorithm out for other "
            "join types and changelogs"
        )
    if order == BEST and isinstance(spec, ThetaSpec):
        raise InvalidArgumentError(
            f"order='best' is found for joins by equalities alone, and the condition is "
            f"{spec.on!r}; name the streams as they are to be joined, as in order=['a', 'b', 'c']"
        )
    if algorithm == "tree" and spec.event_time is not None:
        raise InvalidArgumentError(
            "algorithm='tree' joins over the full history; leave out algorithm, or event_time, "
            "retention and time intervals"
        )


def _beside(
    streams: Mapping[str, pa.Schema], on: Condition, similar: SimilarCondition
) -> AskedCondition | None:
    """What a similarity join leaves to filters; None if that cannot be evaluated here, or if rows
    are in types that similarity joins do not know."""
    try:
        return None if Views(streams).any else AskedCondition.beside(streams, on, similar.rest)
    except InvalidArgumentError:
        return None
