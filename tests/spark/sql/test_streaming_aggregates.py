"""Aggregates of SQL that are computed inside the join: the rows of DuckDB, in every output mode."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, streaming_sql
from lsmstate.spark_integration.catalyst.catalyst import analyzed_plan
from lsmstate.spark_integration.stateful_operator.query_start import operators_in
from support.spark_streams import FileStream
from support.sql_views import in_duckdb, run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions", "view_files")]

FROM = "FROM cust c JOIN ord o ON c.ck = o.ck JOIN line l ON l.ok = o.ok"

EVERYTHING = f"""
SELECT c.seg, count(*) AS n, sum(o.price) AS total, avg(l.qty) AS mean, min(l.note) AS least,
    max(o.price) + 1 AS most, count(l.qty) AS known, count_if(o.price > 50) AS dear,
    sum(o.price) FILTER (WHERE l.qty > 4) AS some, sum(o.price * l.qty) AS product,
    sum(CASE WHEN l.note IN ('n1', 'n2') THEN 1.50 ELSE 0.25 END) AS decimals,
    count(DISTINCT c.seg) AS one
{FROM} GROUP BY c.seg HAVING count(*) > 1"""
PUSHED = EVERYTHING.replace(",\n    count(DISTINCT c.seg) AS one", "")


def alike(found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> bool:
    pairs = zip(sorted(found), sorted(wanted), strict=True)
    return all(_alike(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


def _alike(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-12)
    return bool(found == wanted)


def aggregates_of(query: Any) -> list[str]:
    """What ``explain_multiway`` says of them."""
    return list(query.converted.aggregates)


def newest(batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The last row of each group."""
    return list({row[0]: row for batch in batches for row in batch}.values())


def test_parts_of_aggregates_add_up_to_the_answer(
    spark: Any, view_files: dict[str, FileStream], tmp_path: Path
):
    query = streaming_sql(spark, PUSHED, strict=True, state=State(buckets=2, memory="8m"))
    (line,) = aggregates_of(query)
    assert line.endswith("computed inside the join, one row per group and micro-batch")
    assert query.schema == spark.sql(PUSHED).schema
    assert alike(newest(run(query, tmp_path, "update")), in_duckdb(view_files, PUSHED))


def pinned(query: Any) -> Any:
    (wanted,) = operators_in(analyzed_plan(query.dataframe))
    return wanted.settings, wanted.adopted
