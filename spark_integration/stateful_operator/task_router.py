"""The router of one input in one task: the plan's routing, as the checkpoint fixed it, under the
table of the micro-batch."""

from lsmstate.joins.protocols import Router
from lsmstate.spark_integration.checkpoint.task_run import TaskRun
from lsmstate.spark_integration.plan.stateful_plan import InputPlan, StatefulPlan
from lsmstate.spark_integration.skew.key_watch import SPREAD
from lsmstate.spark_integration.skew.route_tables import Routes


def router_of(plan: StatefulPlan, source: InputPlan, run: TaskRun) -> Router:
    """The router of one input, for one task."""
    routing = plan.routing.settled(run.pinned.buckets, run.pinned.adopted)
    table = Routes.of(plan, run).table(run.batch_id) if plan.skew == SPREAD else None
    return routing.router(source.name, source.rows, source.key, table)


def called_buckets(plan: StatefulPlan, run: TaskRun) -> tuple[int, ...]:
    """The buckets that every task calls, even without rows for them.

    - If event time counts, that is every bucket in the first micro-batch. From then on each bucket
      is called with every watermark, so it can judge late rows although it had no rows.
    - If hot keys are spread, it is the buckets that copy earlier rows of a key (backfill), while
      these can be read.
    """
    if plan.watches_time and run.batch_id == 0:
        return tuple(range(run.pinned.buckets))
    if plan.skew != SPREAD:
        return ()
    return Routes.of(plan, run).table(run.batch_id).added()
