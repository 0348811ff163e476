"""asof_join: each row of one streaming DataFrame with the nearest row of another one in time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.asof import AsofEmit, How, in_time
from lsmstate.joins.options import GROUPS, STATE, TIME, State, Time, refuse_other_fields
from lsmstate.joins.protocols import Routing
from lsmstate.joins.routing.hash_router import HashRouting
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.theta_router import ThetaRouting
from lsmstate.joins.specs.asof import AsofSpec
from lsmstate.joins.specs.changes import OPERATION
from lsmstate.option_names import names_checked
from lsmstate.spark_integration.joins.changes import joined_fields
from lsmstate.spark_integration.joins.late_rows import check_late
from lsmstate.spark_integration.joins.spec_operator import spec_operator
from lsmstate.spark_integration.joins.watermarks import watermark_columns
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions

OPERATOR: Final = "asof_join"


@names_checked(GROUPS)
def asof_join(
    streams: Mapping[str, DataFrame],
    on: str,
    *,
    by: Sequence[str] | Mapping[str, Sequence[str]] | str = (),
    how: How = "inner",
    emit: AsofEmit = "final",
    tolerance: str | timedelta | None = None,
    time: Time = TIME,
    state: State = STATE,
) -> DataFrame:
    """Join each row of one streaming DataFrame with the nearest row of another one in time.

    A result comes when the watermark says that no nearer row can come. Of several rows of one time,
    the one that arrived last counts.

    Args:
        streams: Two streaming DataFrames by name, first the one that each result has one row of.
            Fixed by the first start.
        on: One comparison of their event times, the columns of their watermarks. ``"q.at >=
            p.at"`` and ``>`` find the latest row before, ``<=`` and ``<`` the first one after,
            ``~`` the nearest of both.
        by: Columns that are equal, such as a symbol: one list for both streams, or one for each.
            Rows go by their hash. Without such columns all rows lie in one bucket, so the state has
            ``State(buckets=1)``.
        how: "inner" gives rows with a partner. "left" gives all rows of the first stream.
        emit: "final": results come once, by the watermark. "changes": they come at once, with a
            column ``op``, and are taken back when a nearer row comes.
        tolerance: How far the times may be apart: "5 minutes", or a timedelta.
        time: What becomes of late rows, with ``late`` ("drop" or "side") and ``late_batches``.
            ``window``: the nearest row is one of the same window. ``within`` is another word for
            ``tolerance``.
        state: Where the state lies, and what it may take.

    Returns:
        The streaming DataFrame of the results. It may appear once in a query.

    Raises:
        InvalidArgumentError: A value does not fit; the message names it, the cause and the remedy.

    Example:
        ```python
        priced = asof_join(
            {"q": trades, "p": quotes},  # both withWatermark("at", "1 minute")
            "q.at >= p.at",
            by="symbol",
            tolerance="5 minutes",
        )
        ```
    """
    refuse_other_fields(
        time,
        ("within", "window", "late", "late_batches"),
        "is not an option of asof_join on Spark; leave it out",
    )
    check_late(time.late, time.late_batches, state.backend)
    if not isinstance(streams, Mapping) or len(streams) != 2:
        raise InvalidArgumentError(
            f"streams={streams!r}: give two streaming DataFrames by their names"
        )
    spark = session_of(streams, "stream", "join it afterwards: asof_join(...).join({name}, ...)")
    asked = Inputs.of(spark, streams, {name: [] for name in streams})
    schemas = {plan.name: plan.rows for plan in asked.plans}
    spec = AsofSpec.of(schemas, on, by=by, how=how, emit=emit, **in_time(time, tolerance))
    if not len(spec.key_schema) and state.buckets != 1:
        raise InvalidArgumentError(
            f"by={by!r}: on Spark rows go to buckets by what is equal; name at least one column, "
            "or give State(buckets=1), by which one task does all the work"
        )
    watermarks = watermark_columns(streams)
    for name, column in spec.times.items():
        if watermarks.get(name) != column:
            raise InvalidArgumentError(
                f"on={on!r}: {name}.{column} has no watermark, which says when a result is final; "
                f'declare one, as in .withWatermark({column!r}, "10 minutes")'
            )
    inputs = Inputs.of(spark, streams, {name: list(spec.keys[name]) for name in streams})
    spec = replace(spec, compared_as=inputs.key_schema)
    is_left = how == "left"
    fields = joined_fields(
        {name: frame.schema for name, frame in streams.items()}, {spec.right} if is_left else ()
    )
    if spec.emits_changes:
        fields = [T.StructField(OPERATION, T.StringType(), False), *fields]
    (left, first), (right, second) = spec.times.items()
    routing: Routing = HashRouting(routes_null_keys=frozenset([left]) if is_left else frozenset())
    if not len(spec.key_schema):
        graph = JoinGraph(rows={left: 1, right: 1}, classes={"all rows": (left, right)})
        routing = ThetaRouting(graph, choose(graph, 1))
    return spec_operator(
        spec,
        inputs,
        routing,
        OperatorOptions.of(spark, state),
        operator=OPERATOR,
        explanation=(
            f"for each row of {left} the nearest row of {right} with {left}.{first} {spec.sign} "
            f"{right}.{second}; "
            f"results {'may be taken back' if spec.emits_changes else 'are final'}; rows go "
            + ("by the hash of what is equal" if len(spec.key_schema) else "to the only bucket")
        ),
        late_batches=time.late_batches,
        output=T.StructType(fields),
    )
