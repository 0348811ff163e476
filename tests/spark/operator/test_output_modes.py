"""Whether a converted query may run in append mode where update mode is asked for."""

import pytest

pytest.importorskip("pyspark")

from lsmstate.joins.plan.join_tree import Node, Other
from lsmstate.joins.plan.tsc import two_step_convert
from lsmstate.spark_integration.sql.convert import may_run_as_append
from support.plan_cases import aggregate, join, stream, table

A, B, C = (stream(name) for name in "abc")
REFUSED = {"update": "not supported in update mode"}.get


@pytest.mark.parametrize(
    ("below", "may_run"),
    [
        (B, True),
        (Other("EventTimeWatermark", (B,), B.columns), True),
        (Other("Deduplicate", (B,), B.columns), True),
        (join(B, table("t"), "b.x = t.x", kind="left outer"), True),
        (join(B, C, "b.y = c.x", kind="left outer"), False),
        (Other("FlatMapGroupsWithState", (B,), B.columns), False),
        (Other("TransformWithStateInPySpark", (B,), B.columns), False),
    ],
)
def test_what_stands_below_the_joins(below: Node, may_run: bool) -> None:
    """Spark refuses the query in update mode as it was written."""
    converted = two_step_convert(join(A, below, "a.x = b.x"))
    assert len(converted.multi_joins) == 1
    assert may_run_as_append(REFUSED, REFUSED, converted.after) is may_run


def test_what_stands_above_them() -> None:
    plan = aggregate(join(A, B, "a.x = b.x"), "a.x")
    converted = two_step_convert(plan).after
    assert not may_run_as_append(REFUSED, REFUSED, converted)
    assert may_run_as_append({}.get, REFUSED, converted), "Spark runs it in update mode"
    assert not may_run_as_append({"append": "no watermark"}.get, REFUSED, converted)
