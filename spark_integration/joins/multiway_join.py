"""multiway_join: named streaming DataFrames and a condition -> one streaming DataFrame."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.conditions.key_classes import written_pairs
from lsmstate.joins.conditions.split import split_condition
from lsmstate.joins.local.changes.input import check_unmatched
from lsmstate.joins.specs.changes import FINAL
from lsmstate.joins.specs.event_time import Retention, TimeOptions
from lsmstate.joins.specs.multi_key import GraphSpec, create_spec
from lsmstate.joins.specs.one_key import Condition, check_streams
from lsmstate.joins.specs.typed_condition import How, TypedCondition, in_text, typed_condition
from lsmstate.spark_integration.joins.changes import change_spec, check_time
from lsmstate.spark_integration.joins.final import final_spec
from lsmstate.spark_integration.joins.inner import CoercedSpec, coerced_graph
from lsmstate.spark_integration.joins.late_rows import check_late
from lsmstate.spark_integration.joins.request import OPERATOR, InnerJoin, JoinRequest
from lsmstate.spark_integration.joins.watermarks import check_not_named, timing_of, watermarked
from lsmstate.spark_integration.plan.inputs import Inputs, UnfitInputError, session_of
from lsmstate.spark_integration.plan.options import OPTION_NAMES, OperatorOptions, nearest
from lsmstate.spark_integration.plan.storage import Storage
from lsmstate.spark_integration.skew.checks import (
    check_local,
    check_memory,
    check_repeatable,
    check_skew,
)
from lsmstate.spark_integration.skew.key_watch import SPREAD
from lsmstate.state_location import DEFAULT_CACHE

_OPTIONS: Final = (
    *("how", "emit", "changes", "unmatched", "rows", "shares", "skew", "pins"),
    *("retention", "late", "late_batches", "result_time", *OPTION_NAMES),
)
#: An option of plain joins.
_NAMED_BY_WATERMARKS: Final = "event_time"


def multiway_join(
    streams: Mapping[str, DataFrame],
    on: Condition,
    *,
    how: How = "inner",
    emit: str = "append",
    changes: Mapping[str, str] | None = None,
    unmatched: str = "count",
    memory: int | str = "64m",
    backend: str = "lsm",
    buckets: int | None = None,
    state_dir: str | None = None,
    options: Mapping[str, Any] | None = None,
    rows: Mapping[str, int] | None = None,
    shares: Mapping[str, int] | None = None,
    skew: str | None = None,
    pins: Mapping[str, str] | None = None,
    retention: Retention | None = None,
    late: str = "drop",
    late_batches: int | None = None,
    result_time: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    cache: int | str = DEFAULT_CACHE,
    **reserved: Any,
) -> DataFrame:
    """Join streaming DataFrames in one operator, over their full history or what is kept of it.

        joined = multiway_join({"o": orders, "p": payments}, on="o.id = p.order_id")
        joined.select("amount", "o_day").writeStream...

    ``on`` is SQL text of conditions joined by AND, or the key columns of each stream
    (``{"o": ["id"], "p": ["order_id"]}``), or the columns all streams share by name (``["id"]``).
    Equalities of two streams' columns are keys, compared as Spark's ``=`` compares them; a null
    key matches nothing. Other conditions (``o.day < p.day``) filter what the keys match.

    **Several keys.** Streams need not share one key: ``c.id = o.customer AND o.id = l.order_id``
    joins all three in one operator. Rows then go to the cells of a grid of buckets and are copied
    along the dimensions they have no key for (shares). ``rows`` says how many rows each stream has
    in proportion, which makes the copies few; ``shares`` sets the buckets per key instead, as in
    ``{"c.id": 2, "o.id": 4}``. The first start's choice is kept; ``explain_join`` shows it.

    **Skew.** ``skew="observe"`` counts the keys of inner joins by one common key: the metrics show
    the hottest ones. ``skew="spread"`` also gives a key that has too many rows for one bucket
    several. Of two streams each of its rows is stored in one and looks for matches in all of them;
    of more the rows of one stream, the key's largest then, lie in one bucket each and those of the
    others in all. Fixed by the first start.

    **Beyond inner**: ``how`` is the join type of the streams after
    the first ("inner", "left", "right", "full", "semi", "anti"), or a mapping of streams to types;
    or ``on`` says all of it: ``"o LEFT JOIN p ON o.id = p.order_id"``. With ``how`` and equalities
    a stream is compared with those streams that they name, as in SQL; with lists of columns, with
    whichever stream before it has a row, as in SQL's USING. Where a later row may take back a
    result ``emit="changes"`` is needed: a column ``op`` comes first, ``+I`` for a result that
    comes, ``-D`` for one that goes. ``changes={"p": "kind"}`` says that a stream is a changelog
    and names its operation column (+I, -U, +U, -D), which is not part of the result. A row that
    is taken back and is not there is left out and counted in the workers' log, as in Flink, or
    with ``unmatched="error"`` fails the query. Conditions beside the keys of inner joins must say
    the same of a row for ever then; those of other types compare columns and constants of one type
    (``AND (p.euros > o.due OR p.kind = 'gift')``). Keys may be several; with time intervals rows
    are forgotten when no change in time can touch a result they are part of, and late ones left
    out.

    ``emit="final"`` takes nothing back: results with a row of every stream come at once, others
    when the watermark says that no row can come any more that would change them. Every stream then
    has a watermark and every join an interval (``a LEFT JOIN p ON a.id = p.ad AND p.at BETWEEN a.at
    AND a.at + INTERVAL 2 HOURS``); keys may be several. Semi and anti joins give all results then.

    **Time.** A stream's event time is the column of its watermark (``withWatermark``). With
    intervals in ``on`` between those (``p.at BETWEEN o.at AND o.at + INTERVAL 2 HOURS``), rows that
    no later row can match are forgotten as the watermark moves, also through other streams'
    intervals; ``retention={"o": "7 days"}`` says how long rows of a stream match at most. Where
    any rows are forgotten, those that come after the watermark of the micro-batch before has
    passed them are *late*: left out, as Spark does, and counted in the metrics
    (``late="drop"``), or matched with what is still there (``late="join"``). With ``late="side"``
    they are left out too and kept with the state, as stream ``o (late)``, which
    ``spark.read.format("lsmstate")`` reads: each once, with its micro-batch (``_batch``) and the
    watermark that had passed it (``_watermark``), for ``late_batches`` micro-batches or, by
    default, for ever. Whether they are is fixed by the first start. ``result_time="at"``
    adds a column: the latest event time of a result's rows, with a watermark of its own that is
    true for windows, outer joins and deduplication above the join; Spark wants its setting
    ``spark.sql.streaming.statefulOperator.checkCorrectness.enabled`` to be false for those.

    **Columns of the result.** All columns of all inputs, in the order of ``streams``. A name that
    occurs in one input only stays; one that occurs in several becomes ``<stream>_<column>``
    (``o_day``, ``p_day``). Name columns by these names: ``joined["o_day"]`` or ``F.col("o_day")``.
    The inputs' own column objects (``orders["day"]``) do not resolve in the result; Spark says so
    (CANNOT_RESOLVE_DATAFRAME_COLUMN or MISSING_ATTRIBUTES) when the query is built.

    Options: ``memory`` is the cap of what the state of one running task may hold ("64m", or
    bytes; at least "5m"). ``backend`` is "lsm", "rocksdb" or "memory". ``buckets`` is fixed by
    the first start of a query; default: two per core. ``state_dir`` is a directory of this query
    alone, a local path or an address such as ``s3://bucket/path``; default: ``lsmstate`` in its
    checkpoint location. Where that is not local (backend "lsm" only), ``storage_options`` go to
    its file system, over what the session's Hadoop settings say, and workers keep copies of the
    files in use in ``cache_dir`` (default: where Spark has its own), at most ``cache``. ``options``
    are settings of the store by their names in ``lsmstate.Options``, such as
    ``{"compression": "zstd"}``. ``memory`` and ``options`` may change with every start of a query.
    ``pins`` are settings of your own, by name, that the checkpoint keeps: a later start with others
    is refused, and both are shown; so is one without them.
    The condition is fixed by the first start, all of it: filter above the join by what may change.
    How long rows are kept is fixed by the first start too.

    The result may stand once in a query: to use it twice, write it once with ``foreachBatch``, or
    to a table that other queries read. In ``foreachBatch`` read each batch to its end: ``take``
    alone leaves no state, and Spark fails the query. Join static DataFrames afterwards.

    InvalidArgumentError: the message names the value and what to write instead.
    """
    _check_reserved(reserved)
    _check_streams(streams)
    _check_kinds(
        on, result_time, changes=changes, options=options, rows=rows, shares=shares, pins=pins
    )
    remedy = f"join it afterwards: {OPERATOR}(...).join({{name}}, ...)"
    spark = session_of(streams, "stream", remedy)
    _check_names(streams)
    storage = Storage.of(spark, storage_options, cache_dir, cache)
    checked = OperatorOptions.of(memory, backend, buckets, state_dir, options, storage)
    check_unmatched(unmatched)
    check_late(late, late_batches, backend)
    typed, rest = _condition(streams, on, how)
    is_final = emit == FINAL and not changes
    of_text = is_final and typed.tree is not None
    keys = in_text(typed) if of_text else typed.on
    inputs = _inputs(spark, streams, keys, splits=typed.tree is not None)
    is_graph = inputs.has_several_keys
    _check_graph_options(is_graph, rows, shares)
    request = JoinRequest(
        *(streams, inputs, rest, checked, storage, rows, shares, pins or {}, skew),
        late_batches=late_batches,
    )
    if is_final and typed.tree is not None:
        check_skew(skew, list(streams), "another type")
        kept = retention or {}
        return request.final(final_spec(inputs, streams, typed.tree, kept, late, result_time))
    rows_of = {plan.name: plan.rows for plan in inputs.plans}
    told = TimeOptions(watermarked(rows_of, streams), retention or {}, late)
    emit = "append" if is_final else emit
    changing = change_spec(inputs, typed.tree, rest, emit, changes, told)
    _check_skew(skew, streams, is_graph, changing is not None, checked)
    if changing is not None:
        check_time(changing, spark, told, result_time)
        return request.changing(changing, unmatched)
    spec = _spec(inputs)
    timing = timing_of(spec, streams, rest, retention or {}, late, result_time)
    if timing is not None:
        check_skew(skew, list(streams), "rows that are forgotten")
        return request.in_time(spec, timing, result_time)
    return request.full_history(spec)


def inner_join(
    streams: Mapping[str, DataFrame],
    on: str,
    options: OperatorOptions,
    rows: Mapping[str, int],
    pins: Mapping[str, str],
) -> InnerJoin:
    """What ``multiway_join`` makes an operator of, for the equalities ``on`` over the full history.

    UnfitInputError if an input cannot be stored, or Spark does not compare its keys.
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
    """The names of all columns, which are said to have one type."""
    return {
        name: pa.schema([(column, pa.int64()) for column in frame.schema.names])
        for name, frame in streams.items()
    }


def _spec(inputs: Inputs) -> CoercedSpec | GraphSpec:
    """By several keys if an input lacks one that others have."""
    return coerced_graph(inputs) if inputs.has_several_keys else CoercedSpec.of(inputs)


def _check_reserved(reserved: Mapping[str, Any]) -> None:
    check_not_named(reserved)
    for name in reserved:
        if name != _NAMED_BY_WATERMARKS:
            near = nearest(name, _OPTIONS)
            raise InvalidArgumentError(
                f"there is no option {name!r}; did you mean {near!r}? "
                f"Options: {', '.join(_OPTIONS)}"
            )


def _check_streams(streams: Mapping[str, DataFrame]) -> None:
    if not isinstance(streams, Mapping) or len(streams) < 2:
        raise InvalidArgumentError(
            "streams must map names to at least two streaming DataFrames, such as "
            '{"o": orders, "p": payments}'
        )


def _check_kinds(on: object, result_time: object, **mappings: object) -> None:
    if not isinstance(on, str | Mapping | Sequence):
        raise InvalidArgumentError(
            f'on={on!r}: give a condition in SQL, such as "o.id = p.order_id", or the key columns: '
            '{"o": ["id"], "p": ["order_id"]}, or ["id"]'
        )
    if result_time is not None and not isinstance(result_time, str):
        raise InvalidArgumentError(f"result_time={result_time!r}: give the name of a column to add")
    for name, value in mappings.items():
        if value is not None and not isinstance(value, Mapping):
            raise InvalidArgumentError(
                f"{name}={value!r}: give a dictionary, as the documentation of {OPERATOR} shows"
            )


def _condition(
    streams: Mapping[str, DataFrame], on: Condition, how: How
) -> tuple[TypedCondition, tuple[str, ...]]:
    """Keys and join types, and the conditions of inner joins that are neither."""
    columns = {name: list(frame.schema.names) for name, frame in streams.items()}
    typed = typed_condition(columns, on, how)
    if typed.tree is not None or not isinstance(typed.on, str):
        return typed, ()
    condition = split_condition(typed.on)
    return TypedCondition(condition.keys, None), condition.rest


def _keys(
    streams: Mapping[str, pa.Schema], on: Condition, *, splits: bool
) -> dict[str, list[str | None]]:
    """The key columns of each stream, whose n-th ones are equal in a result; None for no such."""
    spec = create_spec(streams, on, splits=splits)
    if isinstance(spec, GraphSpec):
        return {name: [c.columns.get(name) for c in spec.classes] for name in streams}
    return {name: list(columns) for name, columns in spec.keys.items()}


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
    skew: str | None,
    streams: Mapping[str, DataFrame],
    is_graph: bool,
    is_changing: bool,
    options: OperatorOptions,
) -> None:
    unfit = "several keys" if is_graph else None
    if is_changing:
        unfit = "another type, or a changelog"
    check_skew(skew, list(streams), unfit, options.backend)
    if skew == SPREAD:
        check_memory(list(streams), options.store.memory_bytes)
        check_local(options.state_dir)
        for name, frame in streams.items():
            check_repeatable(name, frame)
