"""cross_join: two small streaming DataFrames, each row of one with each row of the other."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from lsmstate.joins.kinds import Kind, register
from lsmstate.joins.options import State
from lsmstate.joins.routing.shares import JoinGraph, choose
from lsmstate.joins.routing.shares_router import SharesRouting
from lsmstate.spark_integration.joins.spec_operator import spec_operator
from lsmstate.spark_integration.plan.inputs import Inputs, session_of
from lsmstate.spark_integration.plan.options import OperatorOptions
from support.cross_join.local_join import CrossJoin
from support.cross_join.spec import CrossSpec

register(Kind("cross join", CrossSpec, CrossJoin, counters=("pairs",)))


def cross_join(streams: Mapping[str, DataFrame], *, state: State) -> DataFrame:
    """Join two small streams. Their rows are dealt along the two sides of a grid of buckets."""
    spark = session_of(streams, "stream", "join it afterwards: cross_join(...).join({name}, ...)")
    first, second = streams
    columns: dict[str, Any] = {
        first: [streams[first].columns[0], None],
        second: [None, streams[second].columns[0]],
    }
    inputs = Inputs.of(spark, streams, columns)
    spec = CrossSpec.of({source.name: source.rows for source in inputs.plans})
    graph = JoinGraph(
        rows=dict.fromkeys(streams, 1), classes={f"rows of {name}": (name,) for name in streams}
    )
    routing = SharesRouting(
        graph, choose(graph, state.buckets or 1), routes_null_keys=frozenset(streams)
    )
    options = OperatorOptions.of(spark, state)
    return spec_operator(spec, inputs, routing, options, operator="cross_join")
