"""A UNION ALL of multi-way joins, written over the one operator that serves them all."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lsmstate.joins.plan.conditions import Column, substitute
from lsmstate.joins.plan.join_tree import Other
from lsmstate.joins.plan.unions import Branch
from lsmstate.spark_integration.catalyst.catalyst import Catalyst, analyzed_plan
from lsmstate.spark_integration.joins.several import GROUP, rows_column
from lsmstate.spark_integration.sql.plan_writer import PlanWriter


def write_union(
    catalyst: Catalyst,
    writer: PlanWriter,
    union: Other,
    branches: Sequence[Branch],
    joined: DataFrame,
) -> Any:
    """Write the plan of the union.

    ``joined`` holds the results of ``join_together``, in the order of the branches. Each row is
    computed as its own branch says; the expressions of other branches are not evaluated for it.
    """
    numbers = range(len(branches))
    flat = joined.select(
        *((F.col(GROUP) == number).alias(f"is_{number}") for number in numbers),
        *(f"{rows_column(number)}.*" for number in numbers),
    )
    plan = analyzed_plan(flat)
    attributes = catalyst.output_attributes(plan)
    is_of, parts = attributes[: len(branches)], iter(attributes[len(branches) :])
    values = []
    for number, branch in enumerate(branches):
        # Two branches may hold columns of one id, and the union has those of its first input.
        own = {c: Column(f"{c.name} of {number}", c.number) for c in branch.multi_join.columns}
        writer.define({column: next(parts) for column in own.values()})
        values.append([writer.expression(substitute(v, own)) for v in branch.values.values()])
        if branch.condition is not None:
            condition = writer.expression(substitute(branch.condition, own))
            of_others = catalyst.operator("NOT", is_of[number])
            plan = catalyst.filter(catalyst.choice(is_of[number], condition, of_others), plan)
    columns = []
    for column, of_branches in zip(union.columns, zip(*values, strict=True), strict=True):
        # Structs whose fields have other names are one type to a union, and not to IF.
        data_type = catalyst.nullable_type(writer.attribute(column))
        *others, chosen = (catalyst.cast(value, data_type) for value in of_branches)
        for is_own, value in reversed(list(zip(is_of, others, strict=False))):
            chosen = catalyst.choice(is_own, value, chosen)
        columns.append(writer.renamed(chosen, column))
    plan = catalyst.project(columns, plan)
    if any(map(writer.passes_watermark, union.columns)):
        return writer.with_watermark_of(branches[0].multi_join, plan)
    return plan
