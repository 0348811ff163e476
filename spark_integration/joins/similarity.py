"""similarity_join: rows of one or two streaming DataFrames that are close to each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.similarity.workset_routing import WorksetRouting
from lsmstate.joins.options import (
    ON_SPARK,
    SKEW,
    STATE,
    TIME,
    Skew,
    State,
    Time,
    refuse_other_fields,
)
from lsmstate.joins.protocols import Routing
from lsmstate.joins.routing.biclique import BicliqueRouting
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.joins.similarity import Algorithm, How
from lsmstate.joins.specs.malformed import Malformed
from lsmstate.joins.specs.one_key import output_names
from lsmstate.joins.specs.similarity import LEVENSHTEIN, SimilaritySpec, with_time
from lsmstate.joins.specs.similarity_condition import similar_condition
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.catalyst.names import quoted
from lsmstate.spark_integration.checkpoint.pinned_settings import OTHER_CONDITIONS, with_pins
from lsmstate.spark_integration.columns.schemas import output_fields
from lsmstate.spark_integration.joins.residual_filter import filtered
from lsmstate.spark_integration.joins.spec_operator import spec_operator
from lsmstate.spark_integration.joins.watermarks import watermark_columns
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.stateful_operator.build import default_buckets
from lsmstate.state_location import local_path

OPERATOR: Final = "similarity_join"
#: What ``Skew.routing`` may be.
ROUTINGS: Final = ("hash", "biclique", "worksets")
_TIME_HERE: Final = ("within", "window", "late")
_NO_TIME: Final = 'declare one, as in .withWatermark("at", "10 minutes")'


@names_checked(ON_SPARK)
def similarity_join(
    streams: Mapping[str, DataFrame],
    on: str,
    *,
    metric: str | Callable[[Any, Any], Any],
    threshold: float,
    by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
    how: How = "inner",
    distance: str | None = "distance",
    columns: Sequence[str] | None = None,
    algorithm: Algorithm = "auto",
    dimension: int | None = None,
    malformed: Malformed = "refuse",
    skew: Skew = SKEW,
    time: Time = TIME,
    state: State = STATE,
) -> DataFrame:
    """Join two streaming DataFrames, or one with itself, by closeness.

    The result has all columns of both rows and their distance, for all pairs at most a threshold
    apart. Rows are joined over the full history, or within a distance in time or a window.

    Args:
        streams: One or two streaming DataFrames by name. Fixed by the first start.
        on: The two columns, as in ``"a.v ~ b.v"``. Of one stream, the other name is that of the
            second row of a pair.
        metric: "l2", "cosine", "angular", "manhattan", "chebyshev", "hamming", "haversine",
            "jaccard", "levenshtein", or a function of a module that the workers can import. It is
            given two matrices of equal shape, and returns the distance of each row.
        threshold: The largest distance of a pair.
        by: Columns that are equal in a pair, such as a tenant. Rows then go by their hash. Without
            them a row is stored in one bucket, and looks for partners in all of the other side
            (join-biclique).
        how: "inner" gives pairs. "anti", of one stream, gives the rows without an earlier partner;
            without ``by`` all rows then lie in one bucket.
        distance: Name of the column of distances; None: there is none.
        columns: Columns of the result by name; None: all. They keep their order. Others never
            leave the workers, where ``select`` would leave them out behind the join.
        algorithm: How candidates are found.
        dimension: Components of every vector. Default: as many as the first one has.
        malformed: What becomes of a row whose list holds a null, or has another length. "refuse"
            fails the query. "skip" leaves the row out, and counts it in the metrics. "side" keeps
            it in the state too, in a stream ``NAME (malformed)``. Both need ``dimension``, since
            each bucket would have a first vector of its own.
        skew: Where rows are stored, with ``routing`` and ``rows``. "hash": by what ``by`` says, the
            default with it. "biclique": by their content, the default without it; ``rows`` of the
            two streams, in proportion, say how many buckets each has. "worksets": near rows in one
            bucket, so that a row looks into few; buckets are balanced by load as the data changes.
            The state must then be local.
        time: How far the event times of a pair are apart at most, which windows hold both, and what
            becomes of late rows, with ``within``, ``window`` and ``late``. The event time of a
            stream is the column of its watermark.
        state: Where the state lies, and what it may take.

    Returns:
        The streaming DataFrame of the results. It may appear once in a query.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        twins = similarity_join(
            {"a": texts}, "a.v ~ b.v", metric="cosine", threshold=0.05, by="language"
        )
        ```
    """
    refuse_other_fields(time, _TIME_HERE, "is not an option of similarity_join; leave it out")
    refuse_other_fields(
        skew, ("routing", "rows"), "is not an option of similarity_join; leave it out"
    )
    if not isinstance(streams, Mapping) or not 1 <= len(streams) <= 2:
        raise InvalidArgumentError(
            f"streams={streams!r}: give one or two streaming DataFrames by their names"
        )
    if time.late == "side":
        raise InvalidArgumentError(
            "late='side': a similarity join on Spark keeps no late rows aside; choose 'drop' or "
            "'join'"
        )
    spark = session_of(streams, "stream", "join it afterwards: similarity_join(...).join({name})")
    names = {name: list(frame.columns) for name, frame in streams.items()}
    given, streams = streams, {name: _with_arrays(frame) for name, frame in streams.items()}
    asked = Inputs.of(spark, streams, {name: [] for name in streams})
    schemas = {plan.name: plan.rows for plan in asked.plans}
    spec = SimilaritySpec.of(
        schemas,
        on,
        metric=metric,  # type: ignore[arg-type]
        threshold=threshold,
        by=by,
        how=how,
        distance=distance,
        algorithm=algorithm,
        dimension=dimension,
        malformed=malformed,
    )
    if malformed != "refuse" and spec.compares_vectors and spec.known_dimension is None:
        raise InvalidArgumentError(
            f"malformed={malformed!r}: each bucket would take the dimension of its own first "
            "vector; say which one counts, as in dimension=384"
        )
    inputs = Inputs.of(spark, streams, {name: list(spec.keys[name]) for name in streams})
    spec = replace(spec, compared_as=inputs.key_schema)
    spec = with_time(
        spec, watermark_columns(streams), time.within, time.window, time.late, _NO_TIME
    )
    options = OperatorOptions.of(spark, state)
    buckets = options.buckets or default_buckets(spark)
    routing, words = _routing(spec, skew.routing, skew.rows, buckets, options)
    if isinstance(routing, BicliqueRouting):
        options = replace(options, buckets=max(buckets, len(streams)))
    fields = _fields(spec, streams, names)
    spec = spec.showing(columns, [field.name for field in fields])
    shown = range(len(fields)) if spec.shown is None else spec.shown
    output = T.StructType([fields[at] for at in shown])
    kind = "worksets" if isinstance(routing, WorksetRouting) else None
    joined = spec_operator(
        spec,
        inputs,
        routing,
        options,
        operator=OPERATOR,
        explanation=words,
        output=output,
        settings={"routing": kind},
        malformed=malformed,
    )
    return _with_vectors(joined, output, spec, given, shown)


def _routing(
    spec: SimilaritySpec,
    asked: str | None,
    rows: Mapping[str, int] | None,
    buckets: int,
    options: OperatorOptions,
) -> tuple[Routing, str]:
    words = f"pairs with {spec.metric} <= {spec.threshold:g}, found by {spec.algorithm}; "
    names = list(spec.streams)
    if rows is not None and set(rows) != set(names):
        raise InvalidArgumentError(
            f"rows={dict(rows)!r}: give a number for each of the streams {', '.join(names)}"
        )
    if asked not in (None, *ROUTINGS):
        raise InvalidArgumentError(
            f"routing={asked!r} is unknown; give one of {', '.join(map(repr, ROUTINGS))}, or leave "
            "it out"
        )
    if asked == "worksets":
        if options.state_dir is not None and local_path(options.state_dir) is None:
            raise InvalidArgumentError(
                f"routing='worksets' needs its tables in a local directory, not in "
                f"{options.state_dir}; name one with state_dir, or leave routing out"
            )
        words += "near rows lie in one bucket, and a row looks into those that may hold a partner"
        return WorksetRouting.of(spec, buckets), words
    by = next(iter(spec.keys.values()))
    if asked is not None and (asked == "hash") != bool(len(spec.key_schema)):
        raise InvalidArgumentError(
            f"routing={asked!r} with by={by!r}: rows go by their hash where by names columns, and "
            "to all buckets of the other side where it does not; leave routing out"
        )
    if len(spec.key_schema):
        keeps = frozenset(names) if spec.is_anti else frozenset()
        return HashRouting(routes_null_keys=keeps), words + "rows go by the hash of what is equal"
    if spec.is_anti:
        return BicliqueRouting.of({names[0]: 1}, 1), words + "all rows lie in one bucket"
    dealt = {name: 1 if rows is None else rows[name] for name in names}
    return (
        BicliqueRouting.of(dealt, max(buckets, len(names))),
        words + "a row is stored in one bucket and looks into all of the other side",
    )


def _fields(
    spec: SimilaritySpec, streams: Mapping[str, DataFrame], columns: Mapping[str, list[str]]
) -> list[T.StructField]:
    first, *others = streams
    last = others[0] if others else first
    if spec.is_anti:
        return output_fields(streams[first].schema, columns[first])
    sides = dict(zip(spec.sides, (first, last), strict=True))
    names = output_names({side: columns[name] for side, name in sides.items()})
    fields: list[T.StructField] = []
    for side, name in sides.items():
        fields += output_fields(streams[name].schema, names[side])
    if spec.distance is not None:
        fields.append(T.StructField(spec.distance, T.DoubleType()))
    return fields


def close_pairs(
    streams: Mapping[str, DataFrame],
    on: str,
    rows: Mapping[str, int] | None,
    options: OperatorOptions,
    pins: Mapping[str, str],
) -> DataFrame | None:
    """Build the inner join of two streams whose condition bounds a distance. None if a similarity
    join does not answer it. ``rows``: of the streams, in proportion."""
    spark = next(iter(streams.values())).sparkSession
    asked = Inputs.of(spark, streams, {name: [] for name in streams})
    schemas = {plan.name: plan.rows for plan in asked.plans}
    similar = similar_condition(schemas, on)
    if similar is None or not _is_compared_here(similar.spec, streams):
        return None
    inputs = Inputs.of(spark, streams, {name: list(similar.spec.keys[name]) for name in streams})
    spec = replace(similar.spec, compared_as=inputs.key_schema)
    buckets = options.buckets or default_buckets(spark)
    dealt = rows if rows is not None and set(rows) == set(streams) else None
    routing, words = _routing(spec, None, dealt, buckets, options)
    if isinstance(routing, BicliqueRouting):
        options = replace(options, buckets=max(buckets, len(streams)))
    joined = spec_operator(
        spec,
        inputs,
        routing,
        options,
        operator="multiway_join",
        explanation=words,
        settings=with_pins({"condition": on, OTHER_CONDITIONS: list(similar.rest) or None}, pins),
    )
    columns = {name: frame.columns for name, frame in streams.items()}
    return filtered(joined, columns, similar.rest)


def _is_compared_here(spec: SimilaritySpec, streams: Mapping[str, DataFrame]) -> bool:
    """Whether the compared columns are as Spark has them, and what compares them is installed."""
    if spec.metric != LEVENSHTEIN:
        return True
    kinds = [streams[name].schema[column].dataType for name, column in spec.columns.items()]
    return all(kind == T.StringType() for kind in kinds) and bool(find_spec("rapidfuzz"))


def _is_ml_vector(kind: T.DataType) -> bool:
    return isinstance(kind, T.UserDefinedType) and type(kind).__name__ == "VectorUDT"


def _with_arrays(frame: DataFrame) -> DataFrame:
    """Vectors of Spark ML as arrays, under the same names."""
    columns = [field.name for field in frame.schema if _is_ml_vector(field.dataType)]
    if not columns:
        return frame
    from pyspark.ml.functions import vector_to_array

    return frame.withColumns({name: vector_to_array(F.col(quoted(name))) for name in columns})


def _with_vectors(
    joined: DataFrame,
    output: T.StructType,
    spec: SimilaritySpec,
    streams: Mapping[str, DataFrame],
    shown: Sequence[int],
) -> DataFrame:
    """The results, with vectors of Spark ML where the streams have them."""
    first, *others = streams
    sides = (first,) if spec.is_anti else (first, others[0] if others else first)
    kinds = [field.dataType for name in sides for field in streams[name].schema]
    found = [
        field.name
        for field, at in zip(output, shown, strict=True)
        if at < len(kinds) and _is_ml_vector(kinds[at])
    ]
    if not found:
        return joined
    from pyspark.ml.functions import array_to_vector

    return joined.withColumns({name: array_to_vector(F.col(quoted(name))) for name in found})
