"""The router of one input in one task: the plan's routing, as the checkpoint fixed it, under the
table of the micro-batch."""

from lsmstate.joins.protocols import Router
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.tables.versioned_tables import Sample, VersionedTables


def router_of(
    plan: StatefulPlan, source: InputPlan, run: TaskRun, sample: Sample | None = None
) -> Router:
    """The router of one input, for one task, by the settled plan. The first table may be made of
    the task's first rows."""
    tables = VersionedTables.of(plan, run)
    table = None if tables is None else tables.table(run.batch_id, sample)
    return plan.routing.router(source.name, source.rows, source.key, table)


def called_buckets(plan: StatefulPlan, run: TaskRun) -> tuple[int, ...]:
    """The buckets that every task calls, even without rows for them.

    - If event time counts, that is every bucket in the first micro-batch. From then on each bucket
      is called with every watermark, so it can judge late rows although it had no rows.
    - Otherwise it is those that the table of routes names: buckets that copy earlier rows of a hot
      key (backfill), while these can be read.
    """
    if plan.watches_time and run.batch_id == 0:
        return tuple(range(run.pinned.buckets))
    tables = VersionedTables.of(plan, run)
    return () if tables is None else tables.table(run.batch_id).called
