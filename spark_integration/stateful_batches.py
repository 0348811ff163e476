"""stateful_batches: a function over the batches and the store of a bucket becomes a DataFrame."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import pyarrow as pa
from pyspark.sql import DataFrame

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.options import STATE, STATE_ONLY, State
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.columns.schemas import Schema, arrow_schema, struct_type
from lsmstate.spark_integration.plan.bucket import BucketFunction
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import KEEP, NULL_KEYS, StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator
from lsmstate.store import StreamSchema
from lsmstate.store_base.checks import nearest, streams_by_name

_OPERATOR: Final = "stateful_batches"
#: The name of the input where there is only one and it was given none.
_ONLY_INPUT: Final = "input"
NullKeys = Literal["keep", "drop"]
OutputMode = Literal["append", "update"]

#: Columns that all inputs have, or the columns of each input.
KeyColumns = str | Sequence[str] | Mapping[str, str | Sequence[str]]


@names_checked(STATE_ONLY)
def stateful_batches(
    df: DataFrame | Mapping[str, DataFrame],
    *,
    key: KeyColumns,
    function: BucketFunction,
    streams: Mapping[str, Schema] | Sequence[StreamSchema],
    schema: Schema,
    null_keys: NullKeys = KEEP,
    output_mode: OutputMode = "append",
    state: State = STATE,
) -> DataFrame:
    """Run a function of your own over streaming DataFrames, with a state that spills to disk.

    The function is called as ``function(bucket, batches, store)``, once per micro-batch for each
    *bucket* that has rows in it. There are no timers.

    - All rows of a key, of every input, are always in the same bucket.
    - ``batches`` are ``InputBatch`` values: input by input, and within an input in the order of its
      partitions and rows. That order is the same when Spark repeats a micro-batch. The function
      must read them to the end.
    - ``store`` is a ``MultimapStore`` with ``streams``, as the previous micro-batch
      left it. Its changes are committed with the micro-batch. If the function raises, or a worker
      is killed, nothing of them remains and the micro-batch is repeated.
    - The function returns or yields record batches or tables with the columns ``bucket.schema``.
      They leave in pieces of 1 MiB, so a generator needs memory for one of its batches only.
    - The function must give the same rows for the same input and state: no clock, no unseeded
      random numbers, nothing kept in variables between calls. It runs in Spark's workers.

    The result may appear once in a query, as in ``multiway_join``.

    Args:
        df: One streaming DataFrame (``batch.input`` is "input"), or several by name. Fixed by the
            first start.
        key: Key columns that all inputs have ("id", ["user", "day"]), or those of each input ({"a":
            "id", "b": "a_id"}). They compare as Spark's ``=`` does. Fixed by the first start.
        function: The function. It may change with every start.
        streams: Streams of the store: columns by name ({"seen": "at TIMESTAMP"}), kept under the
            key; or StreamSchemas, for a key of its own or an expiry. Fixed by the first start.
        schema: Columns of the result, as DDL, a StructType or a pyarrow.Schema. It may change with
            every start.
        null_keys: "keep": a null is a key value like any other, as in GROUP BY. "drop": rows with a
            null in their key are left out. Fixed by the first start.
        output_mode: Output mode of the query: "append" or "update".
        state: Where the state lies, and what it may take: ``State(memory=..., ...)``.

    Returns:
        The streaming DataFrame of what the function gives.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        def first_rows(bucket, batches, store):
            for batch in batches:
                first = batch.groups().first
                keys = batch.keys.take(pa.array(first))
                new = pa.array(first[~store.exists("seen", keys)])
                when = pa.array([bucket.batch_id] * len(new))
                store.append("seen", pa.record_batch({"batch": when}), batch.keys.take(new))
                yield batch.rows.take(new)

        first = stateful_batches(
            events,
            key="id",
            function=first_rows,
            streams={"seen": "batch BIGINT"},
            schema=events.schema,
        )
        ```
    """
    frames = df if isinstance(df, Mapping) else {_ONLY_INPUT: df}
    if not frames:
        raise InvalidArgumentError(
            "df is empty; give a streaming DataFrame, or a dictionary of them by name"
        )
    spark = session_of(frames, "input", "give a stream (spark.readStream), or use mapInArrow")
    _check_choice("null_keys", null_keys, get_args(NullKeys))
    _check_choice("output_mode", output_mode, get_args(OutputMode))
    if not callable(function):
        raise InvalidArgumentError(
            f"function is {type(function).__name__}; give a function of (bucket, batches, store)"
        )
    checked = OperatorOptions.of(spark, state)
    columns = _key_columns(frames, key)
    first = next(iter(frames))
    inputs = Inputs.of(spark, frames, columns, key_names=columns[first])
    stored = _streams(streams, inputs.key_schema)
    output = struct_type(schema, "schema")
    plan = StatefulPlan(
        operator=_OPERATOR,
        inputs=inputs.plans,
        state=stored,
        output=arrow_schema("schema", output),
        settings=pinned_function(inputs, stored, columns, checked, null_keys),
        keeps_null_keys=null_keys == KEEP,
        routing=HashRouting(keeps_null_keys=null_keys == KEEP),
        output_mode=output_mode,
        options=checked.store,
        backend=checked.backend,
        buckets=checked.buckets,
        default_buckets=default_buckets(spark),
        state_dir=checked.state_dir,
        storage=checked.storage,
        storage_key=checked.storage.keep(),
    )
    return stateful_operator(plan, inputs, function, output)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InvalidArgumentError(f"{name}={value!r} is unknown{nearest(str(value), known)}")


def _key_columns(frames: Mapping[str, DataFrame], key: KeyColumns) -> dict[str, list[str]]:
    """The key columns of each input, spelled as in its schema."""
    given = key if isinstance(key, Mapping) else dict.fromkeys(frames, key)
    for name in given:
        if name not in frames:
            raise InvalidArgumentError(f"key: there is no input {name!r}{nearest(name, frames)}")
    found: dict[str, list[str]] = {}
    for name, frame in frames.items():
        if name not in given:
            raise InvalidArgumentError(
                f"key: input {name!r} has no key columns; name at least one for it"
            )
        columns = given[name]
        wanted = [columns] if isinstance(columns, str) else list(columns)
        found[name] = [_resolved(name, column, frame.schema.names) for column in wanted]
        twice = [column for column, n in Counter(found[name]).items() if n > 1]
        if twice:
            raise InvalidArgumentError(f"key: column {name}.{twice[0]} stands twice; name it once")
    counts = {name: len(columns) for name, columns in found.items()}
    if 0 in counts.values() or len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise InvalidArgumentError(
            f"key: every input needs the same number of key columns, at least one; {listed}"
        )
    return found


def _resolved(owner: str, column: str, known: Iterable[str]) -> str:
    """The column as the schema spells it. Case does not count, as in Spark."""
    alike = [name for name in known if name.lower() == str(column).lower()]
    if not alike:
        raise InvalidArgumentError(
            f"key: input {owner!r} has no column {column!r}{nearest(str(column), known)}"
        )
    if len(alike) > 1:
        raise InvalidArgumentError(
            f"key: input {owner!r} has several columns called {column!r}; rename all but one"
        )
    return alike[0]


def _streams(
    given: Mapping[str, Schema] | Sequence[StreamSchema], key: pa.Schema
) -> tuple[StreamSchema, ...]:
    """The streams of the store. InvalidArgumentError: none, or two of one name."""
    if isinstance(given, Mapping):
        streams = [
            StreamSchema(name, key, arrow_schema(name, struct_type(columns, f"streams[{name!r}]")))
            for name, columns in given.items()
        ]
    else:
        streams = list(given)
    if not all(isinstance(stream, StreamSchema) for stream in streams):
        raise InvalidArgumentError(
            f"streams={given!r}: give names with columns, such as "
            '{"seen": "at TIMESTAMP"}, or StreamSchemas'
        )
    return tuple(streams_by_name(streams).values())


def pinned_function(
    inputs: Inputs,
    streams: Sequence[StreamSchema],
    columns: Mapping[str, Sequence[str]],
    options: OperatorOptions,
    null_keys: str,
) -> dict[str, Any]:
    """What the checkpoint pins of a stateful function: a later start with anything else is
    refused."""
    return {
        "inputs": list(columns),
        "key": [f"{name}.{column}" for name, names in columns.items() for column in names],
        NULL_KEYS: null_keys,
        "backend": options.backend,
        "key types": inputs.key_types,
        "time zone of the keys": inputs.time_zone,
        **{f"columns of {name}": pinned for name, pinned in inputs.columns.items()},
        "state": [stream.name for stream in streams],
        **{f"state {stream.name}": _described(stream) for stream in streams},
    }


def _described(stream: StreamSchema) -> list[str]:
    key = ", ".join(f"{field.name} {field.type}" for field in stream.key)
    return [f"key ({key})", *(f"{field.name} {field.type}" for field in stream.rows)]
