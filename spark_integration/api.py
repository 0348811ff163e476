"""multiway_join: named streaming DataFrames and a condition -> one streaming DataFrame."""

import difflib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from joins.spec import Condition, JoinSpec, output_names
from lsmstate.errors import InvalidArgumentError
from lsmstate.options import Options, parse_bytes
from spark_integration import metrics
from spark_integration.carried import carried_type, restore
from spark_integration.commit import STATE_DDL
from spark_integration.frames import FRAME_DDL
from spark_integration.key_columns import Key, travelling
from spark_integration.keys import KeyColumn
from spark_integration.pinned import check_settings
from spark_integration.plan import CoercedSpec, JoinPlan, StreamPlan
from spark_integration.query import PLAN_METADATA, joins_in, listen, local_path
from spark_integration.route import route_function
from spark_integration.schemas import arrow_schema, output_fields, pinned_type
from spark_integration.stateful_join import OUTPUT_DDL, stateful_function
from spark_integration.unpack import unpack_function
from spark_integration.worker_memory import ENVIRONMENT

#: Names kept for later versions, with the only value this one accepts.
_RESERVED: Final = {"how": "inner", "event_time": None, "late": None, "retention": None}
_OPTIONS: Final = ("memory", "backend", "buckets", "state_dir")
_BACKENDS: Final = ("lsm", "rocksdb", "memory")
_MOST_BUCKETS: Final = 4096
#: Buckets per core, where the number of cores is known.
_BUCKETS_PER_CORE: Final = 2
_BUCKETS_OTHERWISE: Final = 8

_environment_lock = threading.Lock()


def multiway_join(
    streams: Mapping[str, DataFrame],
    on: Condition,
    *,
    memory: int | str = "64m",
    backend: str = "lsm",
    buckets: int | None = None,
    state_dir: str | None = None,
    **reserved: Any,
) -> DataFrame:
    """Join streaming DataFrames over their full history, in one operator.

        joined = multiway_join({"o": orders, "p": payments}, on="o.id = p.order_id")
        joined.select("amount", "o_day").writeStream...

    ``on`` is SQL text of equalities joined by AND, or the key columns of each stream
    (``{"o": ["id"], "p": ["order_id"]}``), or the columns all streams share by name (``["id"]``).
    Keys are compared as Spark's ``=`` compares them; a null key matches nothing.

    **Columns of the result.** All columns of all inputs, in the order of ``streams``. A name that
    occurs in one input only stays; one that occurs in several becomes ``<stream>_<column>``
    (``o_day``, ``p_day``). Name columns by these names: ``joined["o_day"]`` or ``F.col("o_day")``.
    The inputs' own column objects (``orders["day"]``) do not resolve in the result; Spark says so
    (CANNOT_RESOLVE_DATAFRAME_COLUMN or MISSING_ATTRIBUTES) when the query is built.

    Options: ``memory`` is the cap of what the state of one running task may hold ("64m", or
    bytes; at least "5m"). ``backend`` is "lsm", "rocksdb" or "memory". ``buckets`` is fixed by
    the first start of a query; default: two per core. ``state_dir`` is a local directory of this
    query alone; default: ``lsmstate`` in its checkpoint location. ``how``, ``event_time``,
    ``late`` and ``retention`` are reserved.

    The result may stand once in a query: to use it twice, write it once with ``foreachBatch``, or
    to a table that other queries read. In ``foreachBatch`` read each batch to its end: ``take``
    alone leaves no state, and Spark fails the query. Join static DataFrames afterwards.

    InvalidArgumentError: the message names the value and what to write instead.
    """
    _check_reserved(reserved)
    spark = _check_inputs(streams)
    options = _Checked.of(memory, backend, buckets, state_dir)
    plan, keys = _plan(spark, streams, on, options)
    if hasattr(spark, "_jsparkSession"):
        _check_not_nested(streams)
        listen(spark)
    elif plan.state_dir is None:
        raise InvalidArgumentError(
            "under Spark Connect the workers cannot learn the query's checkpoint location; name "
            "a directory that they can write to: multiway_join(..., state_dir=...)"
        )
    if plan.state_dir is not None:
        check_settings(plan.state_dir, plan.wanted())
    return _joined(spark, streams, plan, keys)


@dataclass(frozen=True)
class _Checked:
    memory_bytes: int
    backend: str
    buckets: int | None
    state_dir: str | None

    @classmethod
    def of(
        cls, memory: int | str, backend: str, buckets: int | None, state_dir: str | None
    ) -> "_Checked":
        if backend not in _BACKENDS:
            raise InvalidArgumentError(
                f"backend={backend!r}: did you mean {_nearest(backend, _BACKENDS)!r}? "
                f"Known: {', '.join(_BACKENDS)}"
            )
        if buckets is not None and (
            isinstance(buckets, bool)
            or not isinstance(buckets, int)
            or not 1 <= buckets <= _MOST_BUCKETS
        ):
            raise InvalidArgumentError(
                f"buckets={buckets!r}: must be a whole number from 1 to {_MOST_BUCKETS}, or None"
            )
        memory_bytes = Options(memory_bytes=parse_bytes(memory, "memory")).memory_bytes
        if state_dir is not None:
            state_dir = local_path(str(state_dir), "state_dir")
        return cls(memory_bytes, backend, buckets, state_dir)


def _check_reserved(reserved: Mapping[str, Any]) -> None:
    for name, value in reserved.items():
        if name not in _RESERVED:
            near = _nearest(name, (*_OPTIONS, *_RESERVED))
            raise InvalidArgumentError(
                f"there is no option {name!r}; did you mean {near!r}? "
                f"Options: {', '.join(_OPTIONS)}"
            )
        if value != _RESERVED[name]:
            raise InvalidArgumentError(
                f"{name}={value!r} is not available in this version; leave {name} out "
                "(inner joins over the full history only)"
            )


def _check_inputs(streams: Mapping[str, DataFrame]) -> SparkSession:
    if not isinstance(streams, Mapping) or len(streams) < 2:
        raise InvalidArgumentError(
            "streams must map names to at least two streaming DataFrames, such as "
            '{"o": orders, "p": payments}'
        )
    for name, frame in streams.items():
        if not isinstance(name, str) or not hasattr(frame, "isStreaming"):
            raise InvalidArgumentError(
                f"streams[{name!r}] is {type(frame).__name__}, not a streaming DataFrame under a "
                "name that is text"
            )
        if not frame.isStreaming:
            raise InvalidArgumentError(
                f"stream {name!r} is a static DataFrame; join it afterwards: "
                f"multiway_join(...).join({name}, ...)"
            )
    return next(iter(streams.values())).sparkSession


def _check_not_nested(streams: Mapping[str, DataFrame]) -> None:
    """Spark allows one operator of this kind in a query; its own words would not say whose."""
    for name, frame in streams.items():
        if joins_in(frame._jdf.queryExecution().analyzed()):
            raise InvalidArgumentError(
                f"stream {name!r} is the result of another multiway_join, which may stand once in "
                "a query; give all streams to one join, or write the first result to a table and "
                "read that as a stream"
            )


def _plan(
    spark: SparkSession, streams: Mapping[str, DataFrame], on: Condition, options: _Checked
) -> tuple[JoinPlan, list[Key]]:
    """The plan, and what Spark makes of the key columns before it."""
    schemas = {name: frame.schema for name, frame in streams.items()}
    rows = {name: arrow_schema(name, schema) for name, schema in schemas.items()}
    # Which columns make up the key is JoinSpec's business, the types they are compared in are
    # Spark's: names are resolved on columns of one type.
    alike = {name: pa.schema([(c, pa.int64()) for c in s.names]) for name, s in rows.items()}
    names = JoinSpec.create(alike, on).keys
    keys = [
        Key.of(spark, [KeyColumn.of(stream, schemas[stream][names[stream][k]]) for stream in names])
        for k in range(len(next(iter(names.values()))))
    ]
    coerced = pa.schema([(f"k{k}", key.arrow) for k, key in enumerate(keys)])
    plans = [
        _stream_plan(name, schemas[name], rows[name], number, keys, coerced)
        for number, name in enumerate(streams)
    ]
    casts_to_time = any(_holds_time(field.type) for plan in plans for field in plan.cast_keys)
    plan = JoinPlan(
        spec=CoercedSpec(rows, names, coerced),
        key_types=tuple(key.pinned for key in keys),
        streams=tuple(plans),
        memory_bytes=options.memory_bytes,
        backend=options.backend,
        buckets=options.buckets,
        default_buckets=_default_buckets(spark),
        state_dir=options.state_dir,
        time_zone=spark.conf.get("spark.sql.session.timeZone") if casts_to_time else None,
    )
    return plan, keys


def _holds_time(kind: pa.DataType) -> bool:
    """Whether the type is or contains a time stamp."""
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(pa.types.is_timestamp(kind)) or any(map(_holds_time, parts))


def _stream_plan(
    name: str,
    schema: T.StructType,
    rows: pa.Schema,
    number: int,
    keys: Sequence[Key],
    coerced: pa.Schema,
) -> StreamPlan:
    positions: list[int] = []
    casts: list[pa.Field] = []
    for key, field in zip(keys, coerced, strict=True):
        stored = rows.get_field_index(key.columns[number].column)
        if key.is_stored(number, rows.field(stored).type):
            positions.append(stored)
        else:
            positions.append(len(rows) + len(casts))
            casts.append(field)
    pinned = [f"{f.name} {pinned_type(f.dataType, f'{name}.{f.name}')}" for f in schema]
    return StreamPlan(name, rows, coerced, tuple(positions), pa.schema(casts), tuple(pinned))


def _joined(
    spark: SparkSession,
    streams: Mapping[str, DataFrame],
    plan: JoinPlan,
    keys: Sequence[Key],
) -> DataFrame:
    """route -> the stateful operator -> metrics -> unpack."""
    grouped = _routed(streams, plan, keys).groupBy("bucket")
    is_classic = hasattr(spark, "_jsparkSession")
    with _worker_environment(spark) if is_classic else nullcontext():
        results = grouped.applyInPandasWithState(
            stateful_function(plan), OUTPUT_DDL, STATE_DDL, "append", "NoTimeout"
        )
    payloads = metrics.observe(results).where("payload IS NOT NULL").select("rows", "payload")
    return _unpacked(payloads, plan, streams)


def _unpacked(payloads: DataFrame, plan: JoinPlan, streams: Mapping[str, DataFrame]) -> DataFrame:
    """The rows in the frames, with the columns of the result."""
    fields = _output_fields(streams)
    travelled = T.StructType(
        [T.StructField(f.name, carried_type(f.dataType), f.nullable, f.metadata) for f in fields]
    )
    rows = payloads.mapInArrow(unpack_function(plan), travelled)
    restored = {
        f.name: restore(F.col(_quoted(f.name)), f.dataType).alias(f.name, metadata=f.metadata)
        for f in fields
        if travelled[f.name].dataType != f.dataType
    }
    return rows.withColumns(restored) if restored else rows


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _routed(streams: Mapping[str, DataFrame], plan: JoinPlan, keys: Sequence[Key]) -> DataFrame:
    """All inputs as frames, in one DataFrame whose bucket column carries the join's settings."""
    routed: DataFrame | None = None
    for number, stream in enumerate(plan.streams):
        rows = travelling(streams[stream.name], number, keys, stream.key_positions)
        frames = rows.mapInArrow(route_function(plan, number), FRAME_DDL)
        routed = frames if routed is None else routed.unionAll(frames)
    assert routed is not None
    bucket = F.col("bucket").alias("bucket", metadata={PLAN_METADATA: plan.wanted().to_json()})
    return routed.select(bucket, "stream", "partition", "number", "rows", "payload")


def _output_fields(streams: Mapping[str, DataFrame]) -> list[T.StructField]:
    names = output_names({name: frame.columns for name, frame in streams.items()})
    fields: list[T.StructField] = []
    for name, frame in streams.items():
        fields += output_fields(frame.schema, names[name])
    return fields


def _default_buckets(spark: SparkSession) -> int:
    if not hasattr(spark, "_jsparkSession"):
        return _BUCKETS_OTHERWISE
    return max(1, _BUCKETS_PER_CORE * spark.sparkContext.defaultParallelism)


@contextmanager
def _worker_environment(spark: SparkSession) -> Iterator[None]:
    """Give the stateful node workers of its own: Spark keeps one pool of workers per environment,
    so route and unpack do not make it start more of those that hold state."""
    environment = spark.sparkContext.environment
    with _environment_lock:
        before = dict(environment)
        environment.update(ENVIRONMENT)
        try:
            yield
        finally:
            environment.clear()
            environment.update(before)


def _nearest(name: str, known: tuple[str, ...]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
