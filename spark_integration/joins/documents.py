"""natural_join: streaming DataFrames of JSON documents, joined by all attributes they share."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.document_reading import Reading
from lsmstate.joins.documents import STREAM, store_memory
from lsmstate.joins.kinds import kind_of
from lsmstate.joins.options import GROUPS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.protocols import Routing
from lsmstate.joins.routing.documents.association_groups import GroupRouting
from lsmstate.joins.routing.documents.hypercube import SAMPLE, HypercubeRouting, check_split
from lsmstate.joins.specs.documents import (
    MERGED,
    SIDES,
    Arrays,
    Local,
    NaturalSpec,
    Nulls,
    Output,
)
from lsmstate.joins.specs.one_key import output_names
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import output_fields
from lsmstate.spark_integration.joins.late_rows import LateRows
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.spec_operator import pinned_inputs, plan_of
from lsmstate.spark_integration.joins.watermarks import watermarked
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator
from lsmstate.store_base.checks import nearest

OPERATOR: Final = "natural_join"
ROUTINGS: Final = ("hypercube", "association_groups")

_BY_WATERMARK: Final = "does not apply to a natural join; its event times are those of watermarks"


@names_checked(GROUPS)
def natural_join(
    documents: DataFrame | Mapping[str, DataFrame],
    document: str | Mapping[str, str],
    *,
    id: str | Mapping[str, str] | None = None,
    output: Output = "both",
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    at_least: int = 1,
    arrays: Arrays = "sets",
    nulls: Nulls = "value",
    malformed: str = "refuse",
    local: Local = "auto",
    routing: str = "hypercube",
    sample: DataFrame | Sequence[Any] | None = None,
    split: Mapping[str, int] | None = None,
    unknown: str = "hash",
    time: Time = TIME,
    state: State = STATE,
) -> DataFrame:
    """Join JSON documents that share at least one attribute, and agree on all they share.

    Attributes are dotted paths to leaves, and values are compared by their JSON types; see
    ``lsmstate.join.NaturalJoin``, which has the same options.

    Args:
        documents: One streaming DataFrame, whose documents are joined with each other, each
            unordered pair once; or two by name.
        document: Column of the documents: JSON text, VARIANT, structs or maps, which become JSON
            text. A name, or one for each stream.
        id: Column that names a document.
        output: "both": all columns of both documents; of one stream they are called ``first_...``
            and ``second_...``. "merged": the ids, and one document of all attributes. "ids".
        include: Attributes that count, each with all that lies below it. Default: all.
        exclude: Attributes that do not count, each with all that lies below it.
        at_least: How many shared attributes two documents need.
        arrays: "sets" or "equal": whether order and number of elements count.
        nulls: "value": null equals null. "nothing": an attribute that is null is left out.
        malformed: "refuse" fails the query. "skip" leaves malformed documents out, and counts them
            in the metrics.
        local: Which index finds partners in a bucket: "auto", "fp_tree" or "hash".
        routing: "hypercube": a grid of buckets, whose dimensions are attributes. A document is
            copied along those that it lacks. "association_groups": values that occur together have
            one bucket.
        sample: Some documents, from which the routing is chosen: a static DataFrame with the column
            of the documents, or JSON texts or dictionaries. The first start keeps the choice.
        split: The grid instead: ``{"user": 4, "host": 2}``.
        unknown: Of association groups: where values go that the sample lacks. "hash" or
            "broadcast".
        time: Inside which windows of the watermark's column documents meet, and what becomes of
            late ones, with ``window``, ``late`` and ``late_batches``. The slide of a window divides
            its length. Default: the full history.
        state: Where the state lies, and what it may take.

    Returns:
        The streaming DataFrame of the pairs.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Cost:
        Without ``sample`` and ``split`` all documents go to one bucket.

    Example:
        ```python
        pairs = natural_join(events, "event", id="id", output="ids", sample=some_events)
        ```
    """
    refuse_other_fields(time, ("window", "late", "late_batches"), _BY_WATERMARK)
    frames = documents if isinstance(documents, Mapping) else {STREAM: documents}
    spark = session_of(frames, "stream", "join it afterwards: natural_join(...).join({name}, ...)")
    frames, columns = _as_text(frames, document)
    options = OperatorOptions.of(spark, state)
    options = replace(
        options,
        store=replace(options.store, memory_bytes=store_memory(options.store.memory_bytes)),
    )
    inputs = Inputs.of(spark, frames, {name: [column] for name, column in columns.items()})
    rows = {plan.name: plan.rows for plan in inputs.plans}
    if malformed not in ("refuse", "skip"):
        raise InvalidArgumentError(
            f'malformed={malformed!r}: on Spark malformed documents fail the query ("refuse"), '
            'or are left out and counted ("skip")'
        )
    spec = NaturalSpec.create(
        rows,
        columns,
        id=id,
        output=output,
        window=time.window,
        event_time=watermarked(rows, frames) if time.window is not None else None,
        late=time.late,
        include=include,
        exclude=exclude,
        at_least=at_least,
        arrays=arrays,
        nulls=nulls,
        malformed=malformed,
        local=local,
        is_routed=True,
    )
    if spec.window is not None and spec.window.kind == "count":
        raise InvalidArgumentError(
            f"window={time.window!r}: on Spark the documents of a bucket have no number among all; "
            'give a duration, as in Time(window="10 minutes")'
        )
    buckets = options.buckets or default_buckets(spark)
    chosen, told = _routing(routing, sample, split, unknown, columns, spec.reading, buckets)
    described = {"kind": kind_of(spec).name, **spec.described()}
    settings = {"join": json.loads(json.dumps(described)), **pinned_inputs(inputs, options)}
    settings = {**settings, "routing": routing}
    plan = plan_of(spec, inputs, chosen, options, settings, OPERATOR, told)
    late = LateRows.of(inputs.plans, spec.event_time, time.late_batches)
    plan = late.added_to(plan)
    function = run_join(spec, plan.inputs, late=late)
    return stateful_operator(plan, inputs, function, _output(spec, frames))


def _routing(
    routing: str,
    sample: DataFrame | Sequence[Any] | None,
    split: Mapping[str, int] | None,
    unknown: str,
    columns: Mapping[str, str],
    reading: Reading,
    buckets: int,
) -> tuple[Routing, str]:
    """The routing, and its explanation."""
    if routing not in ROUTINGS:
        raise InvalidArgumentError(f"routing={routing!r} is unknown{nearest(routing, ROUTINGS)}")
    texts = [] if sample is None else _texts(sample, columns)
    if routing == "association_groups":
        if split is not None or not texts:
            raise InvalidArgumentError(
                f"routing={routing!r}: the groups are made from a sample; give sample=..., and "
                "leave split out"
            )
        groups = GroupRouting.chosen(texts, buckets, reading, unknown=unknown)
        return groups, groups.explain()
    if split is not None:
        check_split(split, buckets)
        grid = HypercubeRouting(dict(split), reading)
    elif texts:
        grid = HypercubeRouting.chosen(texts, buckets, reading)
    else:
        grid = HypercubeRouting({}, reading)
    return grid, grid.explain(_read(texts, reading) if texts else None)


def _read(texts: Sequence[str], reading: Reading) -> Any:
    import pyarrow as pa

    return reading.read(pa.array(list(texts[:SAMPLE]), pa.string()))


def _texts(sample: DataFrame | Iterable[Any], columns: Mapping[str, str]) -> list[str]:
    """The sample as JSON texts."""
    if isinstance(sample, DataFrame):
        if sample.isStreaming:
            raise InvalidArgumentError(
                "sample is a streaming DataFrame; give a static one, or some JSON texts"
            )
        column = next(iter(columns.values()))
        texts = sample.select(_text_column(sample, column)).limit(SAMPLE).collect()
        return [row[0] for row in texts if row[0] is not None]
    return [each if isinstance(each, str) else json.dumps(each) for each in sample]


def _as_text(
    frames: Mapping[str, DataFrame], document: str | Mapping[str, str]
) -> tuple[dict[str, DataFrame], dict[str, str]]:
    """The inputs with their documents as JSON text, and the columns of these."""
    found, columns = {}, {}
    for name, frame in frames.items():
        column = document if isinstance(document, str) else document.get(name)
        known = {each.lower(): each for each in frame.columns}
        if column is None or column.lower() not in known:
            raise InvalidArgumentError(
                f"document={document!r}: stream {name!r} has no such column"
                f"{nearest(str(column), frame.columns)}"
            )
        columns[name] = known[column.lower()]
        kind = frame.schema[columns[name]].dataType
        if not isinstance(kind, T.StringType):
            text = _text_column(frame, columns[name]).alias(columns[name])
            frame = frame.select(
                *[text if c == columns[name] else F.col(quoted(c)) for c in frame.columns]
            )
        found[name] = frame
    return found, columns


def _text_column(frame: DataFrame, column: str) -> Any:
    kind = frame.schema[column].dataType
    found = F.col(quoted(column))
    if isinstance(kind, T.StringType):
        return found
    if isinstance(kind, T.StructType | T.MapType) or kind.typeName() == "variant":
        return F.to_json(found)
    raise InvalidArgumentError(
        f"document: column {column!r} is {kind.simpleString()}; give JSON text, VARIANT, a struct "
        "or a map"
    )


def _output(spec: NaturalSpec, frames: Mapping[str, DataFrame]) -> T.StructType:
    """The columns of a result, as Spark sees them."""
    names = list(frames) * 2 if spec.is_of_one_stream else list(frames)
    sides = SIDES if spec.is_of_one_stream else tuple(frames)
    schemas: dict[str, T.StructType] = {}
    for side, name in zip(sides, names, strict=True):
        shown = spec.shown(name).names
        if spec.output == "merged":
            shown = shown[:-1]
        schemas[side] = T.StructType([frames[name].schema[column] for column in shown])
    called = output_names({side: schema.names for side, schema in schemas.items()})
    fields: list[T.StructField] = []
    for side, schema in schemas.items():
        fields += output_fields(schema, called[side])
    if spec.output == "merged":
        fields.append(T.StructField(MERGED, T.StringType()))
    return T.StructType(fields)
