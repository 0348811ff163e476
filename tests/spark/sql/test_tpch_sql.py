"""TPC-H's queries as they are written, over streams: every micro-batch's answer is DuckDB's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from support.benchmark_tables import tpch_streams
from support.spark_streams import FileStream
from support.sql_answers import COMPARED, answers, differing_rows, expected, views
from support.tpch_queries import STAGED, STREAMED

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stress,
    pytest.mark.usefixtures("few_partitions"),
]

#: Inputs of the groups that are merged. Q15 joins a table with an aggregate, left to Spark.
INPUTS = {
    "Q2": [5, 4],
    "Q3": [3],
    "Q5": [6],
    "Q7": [6],
    "Q8": [8],
    "Q9": [6],
    "Q10": [4],
    "Q11": [3, 3],
    "Q15": [],
    "Q18": [3],
    "Q21": [4],
}
#: At scale 0.01; all run at scale 0.1.
QUICK = ("Q3", "Q11")

Streams = dict[str, FileStream]


@pytest.fixture(scope="module")
def small(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    streams = tpch_streams(tmp_path_factory.mktemp("tpch"), 0.01)
    with views(spark, streams):
        yield streams


@pytest.fixture(scope="module")
def large(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    streams = tpch_streams(tmp_path_factory.mktemp("tpch"), 0.1)
    with views(spark, streams):
        yield streams


def check(spark: Any, streams: Streams, name: str, home: Path) -> None:
    sql = STREAMED.get(name) or STAGED[name]
    mode = "complete" if name in STREAMED else "staged"
    found = answers(spark, sql, mode, home, memory="16m", buckets=4)
    assert found.merged == INPUTS[name]
    assert found.merged or "has a streaming aggregate" in found.note
    for number in COMPARED:
        assert not differing_rows(found.after[number], expected(streams, sql, number)), number
    assert found.after[-1], "a query without rows shows nothing"


@pytest.mark.parametrize("name", QUICK)
def test_at_scale_0_01(spark: Any, small: Streams, tmp_path: Path, name: str) -> None:
    check(spark, small, name, tmp_path)


@pytest.mark.parametrize("name", INPUTS)
def test_at_scale_0_1(spark: Any, large: Streams, tmp_path: Path, name: str) -> None:
    check(spark, large, name, tmp_path)
