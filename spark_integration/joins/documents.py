"""natural_join: streaming DataFrames of JSON documents, joined by all attributes they share."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.documents import INSTEAD, NO_DISTANCE, STREAM, store_memory
from lsmstate.joins.kinds import kind_of
from lsmstate.joins.options import GROUPS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.routing.documents.association_groups import SAMPLE, UNKNOWN
from lsmstate.joins.routing.documents.document_table import HYPERCUBE, ROUTINGS, Layout
from lsmstate.joins.routing.documents.hypercube import HypercubeRouting, check_split
from lsmstate.joins.routing.documents.learned_routing import LearnedRouting, Tumbling
from lsmstate.joins.routing.documents.quality import Quality
from lsmstate.joins.specs.documents import (
    MERGED,
    SIDES,
    Arrays,
    Local,
    NaturalSpec,
    Nulls,
    Output,
)
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.joins.specs.one_key import output_names
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.columns.schemas import output_fields
from lsmstate.spark_integration.joins.late_rows import LateRows, check_late
from lsmstate.spark_integration.joins.malformed_rows import MalformedRows
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.joins.spec_operator import pinned_inputs, plan_of
from lsmstate.spark_integration.joins.watermarks import watermarked
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.stateful_operator.build import default_buckets, stateful_operator
from lsmstate.store_base.checks import nearest

DocumentRouting = Literal["hypercube", "association_groups"]
UnknownValues = Literal["hash", "broadcast"]
OPERATOR: Final = "natural_join"

_BY_WATERMARK: Final = "does not apply to a natural join; its event times are those of watermarks"


@names_checked(GROUPS, INSTEAD)
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
    malformed: Malformed = "refuse",
    local: Local = "auto",
    routing: DocumentRouting = "hypercube",
    sample: DataFrame | Sequence[Any] | None = None,
    split: Mapping[str, int] | None = None,
    unknown: UnknownValues = "hash",
    theta: float | None = 0.2,
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
            in the metrics. "side" keeps their rows in the state too, in a stream ``NAME
            (malformed)``.
        local: Which index finds partners in a bucket: "auto", "bitmaps", "by_shape", "fp_tree" or
            "hash".
        routing: "hypercube": a grid of buckets, whose dimensions are attributes. A document is
            copied along those that it lacks. "association_groups": values that occur together have
            one bucket.
        sample: Some documents, from which the routing is chosen: a static DataFrame with the column
            of the documents, or JSON texts or dictionaries. The first start keeps the choice.
            Default: the first documents that arrive.
        split: The grid instead: ``{"user": 4, "host": 2}``. It stays.
        unknown: Of association groups: where values go that the sample lacks. "hash": to the bucket
            of their hash. "broadcast": everywhere, until they were seen three times.
        theta: With tumbling windows: by which part copies or the largest load of a window may
            exceed what was estimated. If they exceed it more, later windows are routed by a choice
            from newer documents. None: the first choice stays.
        time: Inside which windows of the watermark's column documents meet, and what becomes of
            late ones, with ``window``, ``late`` and ``late_batches``. The slide of a window divides
            its length. Default: the full history.
        state: Where the state lies, and what it may take.

    Returns:
        The streaming DataFrame of the pairs.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Cost:
        A document is read once where it is routed, and once in each bucket that it is copied to.

    Example:
        ```python
        pairs = natural_join(events, "event", id="id", output="ids")
        ```
    """
    refuse_other_fields(time, ("window", "late", "late_batches"), _BY_WATERMARK, NO_DISTANCE)
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
    texts = [] if sample is None else _texts(sample, columns)
    learned = _learned(spec, routing, unknown, theta)
    chosen = _first(replace(learned, buckets=buckets), texts, split)
    told = chosen.initial_table.explain() or f"{routing}, chosen from the first documents"
    described = {"kind": kind_of(spec).name, **spec.described()}
    settings = {"join": json.loads(json.dumps(described)), **pinned_inputs(inputs, options)}
    settings = {**settings, "routing": routing}
    plan = plan_of(spec, inputs, chosen, options, settings, OPERATOR, told)
    check_late(time.late, time.late_batches, options.backend)
    late = LateRows.of(inputs.plans, spec.event_time, time.late_batches)
    aside = MalformedRows.of(inputs.plans, malformed, options.backend)
    plan = aside.added_to(late.added_to(plan))
    function = run_join(spec, plan.inputs, late=late, malformed=aside)
    return stateful_operator(plan, inputs, function, _output(spec, frames))


def _learned(spec: NaturalSpec, routing: str, unknown: str, theta: float | None) -> LearnedRouting:
    """The routing without a choice. InvalidArgumentError for what does not fit."""
    if routing not in ROUTINGS:
        raise InvalidArgumentError(f"routing={routing!r} is unknown{nearest(routing, ROUTINGS)}")
    if unknown not in UNKNOWN:
        raise InvalidArgumentError(f"unknown={unknown!r} is unknown{nearest(unknown, UNKNOWN)}")
    if theta is not None and (
        isinstance(theta, bool) or not isinstance(theta, int | float) or not theta >= 0
    ):
        raise InvalidArgumentError(
            f"theta={theta!r}: give by which part a window may be worse than estimated, 0 or more, "
            "as in theta=0.2, or None"
        )
    window = None
    if spec.window is not None and spec.window.panes == 1:
        assert spec.event_time is not None
        window = Tumbling(spec.event_time.columns, spec.window.size)
    return LearnedRouting(routing, spec.reading, unknown, window, theta)


def _first(
    routing: LearnedRouting, texts: Sequence[str], split: Mapping[str, int] | None
) -> LearnedRouting:
    """The routing with what the user chose."""
    if split is None:
        return replace(routing, first=routing.layout(texts)) if texts else routing
    if routing.kind != HYPERCUBE:
        raise InvalidArgumentError(
            f"split={dict(split)!r} is a grid, and routing={routing.kind!r} has none; leave one of "
            "them out"
        )
    check_split(split, routing.buckets)
    grid = HypercubeRouting({(name,): n for name, n in split.items()}, routing.reading)
    cells = grid.cells(routing.reading.read(pa.array(list(texts), pa.string())))
    estimated = Quality.of_cells(cells, routing.buckets)
    return replace(routing, first=Layout(grid, estimated), is_fixed=True)


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
