"""Several joins in one operator, because Spark allows one such operator in a query.

- Each join has its own inputs, under names that no other join has. So it has its own streams in the
  store of every bucket, and it is routed by its own key or shares.
- A row of the result has the number of its join, and its columns in a struct. The structs of the
  other joins are null.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.options import State
from lsmstate.joins.routing.several import SeveralRoutings
from lsmstate.spark_integration.checkpoint.pinned_settings import PINS
from lsmstate.spark_integration.columns.arrow_substitutes import nullable_parts
from lsmstate.spark_integration.joins.multiway_join import inner_join
from lsmstate.spark_integration.joins.request import InnerJoin
from lsmstate.spark_integration.plan.bucket import Bucket, BucketFunction, InputBatch
from lsmstate.spark_integration.plan.inputs import Inputs
from lsmstate.spark_integration.plan.options import OperatorOptions
from lsmstate.spark_integration.plan.stateful_plan import StatefulPlan
from lsmstate.spark_integration.stateful_operator.build import stateful_operator
from lsmstate.store import MultimapStore

#: The column that says which join a row is of, from 0.
GROUP: Final = "group"


@dataclass(frozen=True)
class WantedJoin:
    """One of the joins, inner over the full history."""

    streams: Mapping[str, DataFrame]
    on: str
    """Equalities, joined by AND."""
    rows: Mapping[str, int]
    """Rows per stream, in proportion, where the streams share no key."""
    pins: Mapping[str, str]


def rows_column(number: int) -> str:
    """The column with the rows of a join, as a struct."""
    return f"rows{number}"


def join_together(joins: Sequence[WantedJoin], state: State) -> DataFrame:
    """Build one operator for all joins.

    Args:
        joins: The joins.
        state: Where the state lies, and what it may take.

    Returns:
        The results of all joins.

    Raises:
        UnfitInputError: An input cannot be stored or compared.
    """
    spark = next(iter(joins[0].streams.values())).sparkSession
    checked = OperatorOptions.of(spark, state)
    built = [inner_join(join.streams, join.on, checked, join.rows, join.pins) for join in joins]
    output = pa.schema(
        [
            pa.field(GROUP, pa.int32(), nullable=False),
            *(
                pa.field(rows_column(number), pa.struct(list(join.plan.output)))
                for number, join in enumerate(built)
            ),
        ]
    )
    columns = [T.StructField(GROUP, T.IntegerType(), nullable=False)]
    columns += [
        T.StructField(rows_column(number), nullable_parts(join.output))
        for number, join in enumerate(built)
    ]
    inputs = Inputs(
        {name: frame for join in built for name, frame in join.inputs.frames.items()},
        tuple(key for join in built for key in join.inputs.keys),
        tuple(name for join in built for name in join.inputs.key_names),
        tuple(plan for join in built for plan in join.inputs.plans),
    )
    plan = plan_of_all([join.plan for join in built], output)
    return stateful_operator(plan, inputs, function_of_all(built), T.StructType(columns))


def plan_of_all(plans: Sequence[StatefulPlan], output: pa.Schema) -> StatefulPlan:
    """The plan of the first join, with the inputs, state and settings of all."""
    settings = {
        f"{name} of join {number}": value
        for number, plan in enumerate(plans, 1)
        for name, value in plan.settings.items()
        if name not in ("backend", PINS)
    }
    return replace(
        plans[0],
        inputs=tuple(source for plan in plans for source in plan.inputs),
        state=tuple(stream for plan in plans for stream in plan.state),
        output=output,
        settings={"backend": plans[0].backend, **settings},
        routing=SeveralRoutings(
            tuple(plan.routing for plan in plans),
            tuple(frozenset(source.name for source in plan.inputs) for plan in plans),
        ),
        join={},
        explanation="\n".join(
            f"join {number}:\n{plan.explanation}" for number, plan in enumerate(plans, 1)
        ),
    )


def function_of_all(joins: Sequence[InnerJoin]) -> BucketFunction:
    """Each batch goes to the function of its join. Batches of one join follow each other."""
    number_of = {
        source.name: number for number, join in enumerate(joins) for source in join.plan.inputs
    }
    functions = [join.function for join in joins]
    schemas = [join.plan.output for join in joins]

    def join_all(
        bucket: Bucket, batches: Iterator[InputBatch], store: MultimapStore
    ) -> Iterator[pa.RecordBatch]:
        for number, own in groupby(batches, key=lambda batch: number_of[batch.input]):
            part = replace(bucket, schema=schemas[number])
            for rows in functions[number](part, own, store) or ():
                yield _tagged(rows, number, bucket.schema)

    return join_all


def _tagged(rows: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of join ``number`` as rows of the operator."""
    columns = [pa.nulls(rows.num_rows, field.type) for field in schema]
    columns[0] = pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows)
    own = schema.field(number + 1).type
    columns[number + 1] = pa.StructArray.from_arrays(rows.columns, fields=list(own))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
