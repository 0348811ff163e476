"""An inner join that hands out partial aggregates of its results.

Its state and its settings are those of the same join without aggregates, so either goes on with
what the other stored.
"""

from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from lsmstate.joins.local.aggregates.groups import Groups
from lsmstate.joins.specs.aggregates import Aggregates
from lsmstate.joins.specs.multi_key import GraphSpec
from lsmstate.spark_integration.joins.request import InnerJoin
from lsmstate.spark_integration.joins.run_join import run_join
from lsmstate.spark_integration.stateful_operator.build import stateful_operator

#: The part of the cap that groups may take before they are handed out.
_GROUPS_SHARE: Final = 16


def shown_rows(join: InnerJoin) -> dict[str, pa.Schema]:
    """The columns of each stream that are part of a result."""
    spec = join.spec
    return dict(spec.shown_rows if isinstance(spec, GraphSpec) else spec.streams)


def aggregated_join(join: InnerJoin, aggregates: Aggregates, output: T.StructType) -> DataFrame:
    """Make an operator of a join whose results are aggregated.

    Args:
        join: The join.
        aggregates: What is computed of groups of its results.
        output: The columns ``aggregates.schema`` as Spark has them.

    Returns:
        For each micro-batch and bucket one row per group, more if the groups take more than a
        sixteenth of the memory cap.

    Raises:
        InvalidArgumentError: An aggregate cannot be computed here.
    """
    streams = shown_rows(join)
    plan = replace(join.plan, output=aggregates.schema(streams), parts=())
    groups = partial(Groups, aggregates, streams, plan.memory_bytes // _GROUPS_SHARE)
    function = run_join(join.spec, plan.inputs, groups=groups)
    return stateful_operator(plan, join.inputs, function, output)
