"""multiway_join: several streaming DataFrames and a condition become one streaming DataFrame.

- A join has one form: inner over the full history, inner with event time, changes, or final. The
  spec says which (``lsmstate.joins.specs``), and ``JoinRequest`` builds the operator.
- Names and equalities are resolved here. The type in which a key is compared is Spark's
  (``columns.key_types``).
- An unknown or contradictory option raises InvalidArgumentError before anything runs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.classify import split_condition
from lsmstate.joins.conditions.columns import Column as StreamColumn
from lsmstate.joins.conditions.key_classes import written_pairs
from lsmstate.joins.local.changes.input import check_unmatched
from lsmstate.joins.options import (
    ON_SPARK,
    SKEW,
    STATE,
    TIME,
    Emit,
    Skew,
    State,
    Time,
    Unmatched,
    check_most_results,
    refuse_most_results,
)
from lsmstate.joins.specs.aggregates import OPERATION_STREAM
from lsmstate.joins.specs.changes import FINAL, OPERATION, operation_columns
from lsmstate.joins.specs.event_time import TimedSpec, TimeOptions
from lsmstate.joins.specs.interval_warnings import warn_of_kept_rows
from lsmstate.joins.specs.multi_key import GraphSpec, create_spec
from lsmstate.joins.specs.one_key import Condition, JoinSpec, check_streams, output_names
from lsmstate.joins.specs.typed_condition import How, TypedCondition, in_text, typed_condition
from lsmstate.joins.specs.within import with_time
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.catalyst.catalyst import is_classic
from lsmstate.spark_integration.catalyst.conditions import column_text
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import arrow_schema
from lsmstate.spark_integration.joins.aggregated import (
    GroupedResults,
    KnownJoin,
    UngroupedError,
    remember,
)
from lsmstate.spark_integration.joins.changes import change_spec, check_time
from lsmstate.spark_integration.joins.computed_keys import with_computed_keys
from lsmstate.spark_integration.joins.final import final_spec
from lsmstate.spark_integration.joins.inner import coerced_graph, coerced_spec
from lsmstate.spark_integration.joins.late_rows import check_late
from lsmstate.spark_integration.joins.request import OPERATOR, InnerJoin, JoinRequest
from lsmstate.spark_integration.joins.similarity import close_pairs
from lsmstate.spark_integration.joins.theta import AskedTime, ThetaRequest, any_condition
from lsmstate.spark_integration.joins.watermarks import (
    check_not_named,
    timing_of,
    watermark_columns,
    watermark_missing,
    watermarked,
)
from lsmstate.spark_integration.plan.inputs import Inputs, UnfitInputError, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.skew.checks import (
    check_memory,
    check_repeatable,
    check_skew,
)
from lsmstate.spark_integration.skew.key_watch import SPREAD

_NO_TIME: Final = 'give it a watermark, as in stream.withWatermark("at", "10 minutes")'


@names_checked(ON_SPARK)
def multiway_join(
    streams: Mapping[str, DataFrame],
    on: Condition | Column,
    *,
    how: How = "inner",
    emit: Emit = "append",
    changes: Mapping[str, str] | None = None,
    unmatched: Unmatched = "count",
    most_results: float | None = None,
    pins: Mapping[str, str] | None = None,
    skew: Skew = SKEW,
    time: Time = TIME,
    state: State = STATE,
) -> DataFrame:
    """Join several streaming DataFrames in one stateful operator.

    Rows are joined over the full history, or over what event time keeps of it. The result is a
    streaming DataFrame and may appear once in a query. To use it twice, write it in
    ``foreachBatch`` or to a table. In ``foreachBatch`` read each batch to its end: after a ``take``
    alone the state is incomplete and Spark fails the query. Join static DataFrames after this join.

    **Keys.** Equalities of columns, or of nested fields, of two streams are keys. They compare as
    Spark's ``=`` does, and a null matches nothing. Other conditions of inner joins (``o.day <
    p.day``) filter what the keys match. Streams need not share one key: ``c.id = o.customer AND
    o.id = l.order_id`` joins three streams. Rows then go to the cells of a grid of buckets. A
    stream that lacks a key is copied along the dimension of that key (hypercube shares, see
    ``explain_join``).

    **Other join types.** ``how`` gives the type of each join, or ``on`` is a whole FROM clause.
    With ``how`` and equalities, a stream is compared with the streams that the equalities name.
    With lists of columns it is compared with whichever earlier stream has a row, as in SQL's USING.
    Conditions beside the keys (``AND (p.euros > o.due + 1 OR p.kind = 'gift')``) say which rows
    match.

    **Changelogs.** With ``emit="changes"`` a result may be retracted. The first column ``op`` is
    ``+I`` for a new result and ``-D`` for a retracted one. Conditions beside the keys of inner
    joins must then have the same value for ever: no clock, no random numbers. With time intervals,
    a row is forgotten when no change in time can touch a result of it, and late changes are left
    out.

    **Final results.** With ``emit="final"`` no result is retracted. A result with a row of every
    stream comes at once. Any other result comes when the watermark says that no row can change it.
    Semi and anti joins give all results then. Every stream needs a watermark, and every join a time
    interval: ``a LEFT JOIN p ON a.id = p.ad AND p.at BETWEEN a.at AND a.at + INTERVAL 2 HOURS``.

    **Any condition.** Joins of two streams, and inner joins of any number, need no equality, with
    each ``emit``: ``a LEFT JOIN b ON a.x BETWEEN b.low AND b.high``.

    **Event time.** The event time of a stream is the column of its watermark (``withWatermark``).
    Time intervals in ``on`` bound how long a row can match, also through the intervals of other
    streams. Rows that nothing can match any more are forgotten as the watermark moves. In such a
    join, a row is *late* if the watermark of the previous micro-batch has passed its event time.

    **Columns.** The result has all columns of all streams, in the order of ``streams``. A name that
    occurs once stays. A name that occurs in several streams becomes ``<stream>_<column>``. Refer to
    columns by these names: ``joined["o_day"]`` or ``F.col("o_day")``. Column objects of the inputs
    (``orders["day"]``) do not resolve in the result; Spark reports CANNOT_RESOLVE_DATAFRAME_COLUMN
    or MISSING_ATTRIBUTES.

    Args:
        streams: Streaming DataFrames by name, at least two. Fixed by the first start.
        on: What is joined: SQL conditions joined by AND, a FROM clause (``"o LEFT JOIN p ON o.id =
            p.order_id"``), a Column (``F.col("o.id") == F.col("p.order_id")``, not under Spark
            Connect), the key columns of each stream (``{"o": ["id"], "p": ["order_id"]}``), or the
            key columns that all streams have (``["id"]``). All of it is fixed by the first start;
            filter the result by what may change.
        how: Join type of the streams after the first: "inner", "left", "right", "full", "semi" or
            "anti"; or a mapping of streams to types.
        emit: "append": results never change. "changes": a column ``op`` says whether a result is
            new or retracted. "final": results come once, when they are final.
        changes: Operation column of each stream that is a changelog, as in ``{"p": "kind"}``. It
            holds ``+I``, ``-U``, ``+U`` or ``-D`` and is not part of the result.
        unmatched: What becomes of a retraction of a row that is not stored: "count" ignores it,
            counts it in the metrics and logs it, as Flink does; "error" fails the query.
        most_results: Most results for each row of a batch, in joins whose streams are not all
            connected by equalities; more fail the query. Default: more than 1,000 are logged.
        pins: Settings of your own by name, which the checkpoint keeps. A start with other ones, or
            without them, is refused.
        skew: How rows are spread over the buckets: ``Skew(rows=..., ...)``.
        time: How long rows are kept, and what becomes of late ones: ``Time(retention=..., ...)``.
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``. Memory and
            settings of the store may change with every start.

    Returns:
        The streaming DataFrame of the results.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.
            Some checks need the running query, which then ends with this error.

    Cost:
        Each row is stored once, in joins by several keys once per copy. It is probed in each other
        stream until one has no match.

    Example:
        ```python
        joined = multiway_join({"o": orders, "p": payments}, on="o.id = p.order_id")
        query = joined.select("amount", "o_day").writeStream.format("parquet").start("out")
        ```
    """

    def make(
        grouped: GroupedResults | None = None, wanted: Collection[StreamColumn] | None = None
    ) -> Joined:
        return joined(
            streams,
            on,
            how=how,
            emit=emit,
            changes=changes,
            unmatched=unmatched,
            most_results=most_results,
            pins=pins,
            skew=skew,
            time=time,
            state=state,
            grouped=grouped,
            wanted=wanted,
        )

    def narrowed(wanted: Sequence[StreamColumn]) -> DataFrame | None:
        narrow = make(wanted=wanted)
        is_narrow = len(narrow.frame.columns) < len(found.frame.columns)
        return narrow.selected(streams, wanted) if is_narrow else None

    found = make()
    if is_classic(found.frame.sparkSession) and (columns := found.columns(streams)):
        known = KnownJoin(
            found.with_operation(streams), columns, lambda each: make(each).frame, narrowed
        )
        remember(found.frame, known)
    return found.frame


class Joined(NamedTuple):
    """The result of a join."""

    frame: DataFrame
    shown: Collection[str]
    """The streams that it has columns of."""
    operations: Mapping[str, str]
    """The operation column of each stream that is a changelog."""
    emits_changes: bool = False

    def columns(self, streams: Mapping[str, DataFrame]) -> Mapping[StreamColumn, T.StructField]:
        """Those of the result, in their order; none where it has others beside."""
        columns, fields = list(self._names(streams)), self.frame.schema.fields
        return dict(zip(columns, fields, strict=True)) if len(columns) == len(fields) else {}

    def selected(
        self, streams: Mapping[str, DataFrame], wanted: Sequence[StreamColumn]
    ) -> DataFrame:
        """Some columns of the result, in this order."""
        names = self._names(streams)
        return self.frame.select(*(quoted(names[each]) for each in wanted))

    def _names(self, streams: Mapping[str, DataFrame]) -> Mapping[StreamColumn, str]:
        """What the columns of a result are called."""
        shown = {
            name: [each for each in frame.columns if each != self.operations.get(name)]
            for name, frame in streams.items()
            if name in self.shown
        }
        called = output_names(shown)
        columns = {
            StreamColumn(name, column): found
            for name, own in shown.items()
            for column, found in zip(own, called[name], strict=True)
        }
        operation = StreamColumn(OPERATION_STREAM, OPERATION)
        return {operation: OPERATION, **columns} if self.emits_changes else columns

    def with_operation(self, streams: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
        """The streams whose columns it has, with that of the operation."""
        if not self.emits_changes:
            return streams
        return {**streams, OPERATION_STREAM: self.frame.select(OPERATION)}


def joined(
    streams: Mapping[str, DataFrame],
    on: Condition | Column,
    *,
    how: How = "inner",
    emit: Emit = "append",
    changes: Mapping[str, str] | None = None,
    unmatched: Unmatched = "count",
    most_results: float | None = None,
    pins: Mapping[str, str] | None = None,
    skew: Skew = SKEW,
    time: Time = TIME,
    state: State = STATE,
    grouped: GroupedResults | None = None,
    wanted: Collection[StreamColumn] | None = None,
) -> Joined:
    """``multiway_join``, whose results may be aggregated before they leave the join. It raises
    UngroupedError if they cannot be. ``wanted``: columns that the query above reads; others may
    then be missing in the result."""
    check_not_named(time)
    retention, late, result_time = time.retention or {}, time.late, time.result_time
    _check_streams(streams)
    _check_kinds(on, result_time, changes=changes, pins=pins)
    rows, shares, hot_keys = skew.rows, skew.shares, skew.hot_keys
    remedy = f"join it afterwards: {OPERATOR}(...).join({{name}}, ...)"
    spark = session_of(streams, "stream", remedy)
    _check_names(streams)
    checked = OperatorOptions.of(spark, state)
    check_unmatched(unmatched)
    check_most_results(most_results)
    check_late(late, time.late_batches, state.backend)
    condition = column_text(on) if isinstance(on, Column) else on
    columns, times = _columns(streams), watermark_columns(streams)
    condition, how = with_time(condition, time, times, columns, _NO_TIME, how)
    is_plain = how == "inner" and emit in ("append", FINAL) and not changes
    is_plain = is_plain and replace(skew, rows=None) == SKEW
    if is_plain and time == TIME and most_results is None and isinstance(condition, str):
        close = close_pairs(streams, condition, rows, checked, pins or {})
        if close is not None:
            if grouped is not None:
                raise UngroupedError("results of a similarity join are not aggregated inside it")
            return Joined(close, list(streams), {})
    is_aggregated = grouped is not None
    asked = any_condition(
        *(streams, condition, how, emit, changes, skew, retention), is_aggregated=is_aggregated
    )
    if asked is not None:
        asked_time = AskedTime(retention, late, time.late_batches, result_time)
        theta = ThetaRequest(
            *(streams, asked, emit, changes, unmatched, checked, skew),
            *(pins or {}, most_results, asked_time, grouped, wanted),
        )
        shown = [asked.left] if asked.kind in ("semi", "anti") else list(streams)
        frame = theta.joined(OPERATOR)
        stored = {name: arrow_schema(name, each.schema) for name, each in streams.items()}
        operations = operation_columns(stored, changes or {})
        return Joined(frame, shown, operations, emit == "changes")
    refuse_most_results(most_results)
    streams, condition, computed = with_computed_keys(streams, condition)
    typed, rest = _condition(streams, condition, how)
    is_final = emit == FINAL and not changes
    of_text = is_final and typed.tree is not None
    keys = in_text(typed) if of_text else typed.on
    inputs = _inputs(spark, streams, keys, splits=typed.tree is not None)
    is_graph = inputs.has_several_keys
    _check_graph_options(is_graph, rows, shares)
    request = JoinRequest(
        *(streams, inputs, rest, checked, checked.storage, rows, shares, pins or {}, hot_keys),
        late_batches=time.late_batches,
        grouped=grouped,
        wanted=wanted,
    )
    if is_final and typed.tree is not None:
        check_skew(hot_keys, list(streams), "is of another type")
        spec = final_spec(inputs, streams, typed.tree, retention, late, result_time)
        return Joined(request.final(spec).drop(*computed), spec.shown, {})
    rows_of = {plan.name: plan.rows for plan in inputs.plans}
    event_times = watermarked(rows_of, streams)
    warn_of_kept_rows(rows_of, condition, event_times, watermark_missing, depth=2)
    told = TimeOptions(event_times, retention, late)
    emit = "append" if is_final else emit
    changing = change_spec(inputs, typed.tree, rest, emit, changes, told)
    _check_skew(hot_keys, streams, is_graph, changing is not None, checked)
    if changing is not None:
        check_time(changing, spark, told, result_time)
        return Joined(
            request.changing(changing, unmatched).drop(*computed),
            changing.shown,
            changing.operations,
            changing.emits_changes,
        )
    inner = _spec(inputs)
    timing = timing_of(inner, streams, rest, retention, late, result_time)
    if timing is not None:
        check_skew(hot_keys, list(streams), "forgets rows")
        found = request.in_time(TimedSpec(inner, timing), result_time)
    else:
        found = request.full_history(inner)
    return Joined(found.drop(*computed), list(streams), {})


def inner_join(
    streams: Mapping[str, DataFrame],
    on: str,
    options: OperatorOptions,
    rows: Mapping[str, int],
    pins: Mapping[str, str],
) -> InnerJoin:
    """Build the inner join of ``streams`` over the full history, without making an operator of it.

    Args:
        streams: Streaming DataFrames by name.
        on: Equalities joined by AND.
        options: Checked options of the operator.
        rows: Rows per stream, in proportion.
        pins: Settings of the user that the checkpoint keeps.

    Returns:
        What ``stateful_operator`` needs.

    Raises:
        UnfitInputError: An input cannot be stored, or Spark does not compare its keys.
    """
    spark = next(iter(streams.values())).sparkSession
    inputs = _inputs(spark, streams, _condition(streams, on, "inner")[0].on)
    request = JoinRequest(streams, inputs, (), options, options.storage, rows, None, pins)
    return request.inner(_spec(inputs))


def _inputs(
    spark: SparkSession,
    streams: Mapping[str, DataFrame],
    on: Condition,
    *,
    splits: bool = False,
) -> Inputs:
    # Which columns make up a key is the spec's business, the types they are compared in are
    # Spark's: names are resolved on columns of one type.
    alike = _alike(streams)
    keys = _keys(alike, on, splits=splits)
    written = written_pairs(alike, on) if isinstance(on, str) else None
    try:
        return Inputs.of(spark, streams, keys, written=written)
    except InvalidArgumentError as unfit:
        raise UnfitInputError(str(unfit)) from unfit


def _check_names(streams: Mapping[str, DataFrame]) -> None:
    try:
        check_streams(_alike(streams))
    except InvalidArgumentError as unfit:
        raise UnfitInputError(str(unfit)) from unfit


def _alike(streams: Mapping[str, DataFrame]) -> dict[str, pa.Schema]:
    """The names of all columns, under one type for all of them: only names matter here."""
    return {
        name: pa.schema([(column, pa.int64()) for column in frame.schema.names])
        for name, frame in streams.items()
    }


def _spec(inputs: Inputs) -> JoinSpec | GraphSpec:
    """By several keys if an input lacks one that others have."""
    return coerced_graph(inputs) if inputs.has_several_keys else coerced_spec(inputs)


def _check_streams(streams: Mapping[str, DataFrame]) -> None:
    if not isinstance(streams, Mapping) or len(streams) < 2:
        raise InvalidArgumentError(
            "streams must map names to at least two streaming DataFrames, such as "
            '{"o": orders, "p": payments}'
        )


def _check_kinds(on: object, result_time: object, **mappings: object) -> None:
    if not isinstance(on, str | Mapping | Sequence | Column):
        raise InvalidArgumentError(
            f'on={on!r}: give a condition in SQL, such as "o.id = p.order_id", or the key columns: '
            '{"o": ["id"], "p": ["order_id"]}, or ["id"]'
        )
    if result_time is not None and not isinstance(result_time, str):
        raise InvalidArgumentError(f"result_time={result_time!r}: give the name of a column to add")
    for name, value in mappings.items():
        if value is not None and not isinstance(value, Mapping):
            raise InvalidArgumentError(
                f"{name}={value!r} is {type(value).__name__}; give a dictionary, as the "
                f"documentation of {OPERATOR} shows"
            )


def _columns(streams: Mapping[str, DataFrame]) -> dict[str, list[str]]:
    return {name: list(frame.schema.names) for name, frame in streams.items()}


def _condition(
    streams: Mapping[str, DataFrame], on: Condition, how: How
) -> tuple[TypedCondition, tuple[str, ...]]:
    """Keys and join types, and the conditions of inner joins that are neither."""
    columns = _columns(streams)
    typed = typed_condition(columns, on, how)
    if typed.tree is not None or not isinstance(typed.on, str):
        return typed, ()
    condition = split_condition(typed.on, columns)
    return TypedCondition(condition.keys, None), condition.rest


def _keys(
    streams: Mapping[str, pa.Schema], on: Condition, *, splits: bool
) -> dict[str, list[str | None]]:
    """The key columns of each stream. The n-th ones are equal in a result; None: no such column."""
    classes = create_spec(streams, on, splits=splits).key_columns
    return {name: [columns.get(name) for columns in classes] for name in streams}


def _check_graph_options(
    is_graph: bool, rows: Mapping[str, int] | None, shares: Mapping[str, int] | None
) -> None:
    for name, value in {"rows": rows, "shares": shares}.items():
        if value is not None and not is_graph:
            raise InvalidArgumentError(
                f"{name}={value!r}: all streams share one key, so every row goes to one bucket; "
                f"leave {name} out"
            )


def _check_skew(
    hot_keys: str | None,
    streams: Mapping[str, DataFrame],
    is_graph: bool,
    is_changing: bool,
    options: OperatorOptions,
) -> None:
    unfit = "has several keys" if is_graph else None
    if is_changing:
        unfit = "is of another type or reads a changelog"
    check_skew(hot_keys, list(streams), unfit, options.backend)
    if hot_keys == SPREAD:
        check_memory(list(streams), options.store.memory_bytes)
        for name, frame in streams.items():
            check_repeatable(name, frame)
