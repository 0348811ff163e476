"""TPC-DS's queries and the paper's over streams: every micro-batch's answer is DuckDB's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from support.benchmark_tables import tpcds_streams
from support.spark_streams import FileStream
from support.sql_answers import (
    COMPARED,
    answers,
    differing_appended,
    differing_rows,
    expected,
    views,
)
from support.tpcds_queries import PAPER, STAGED, STREAMED, TABLES, benchmark_text

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stress,
    pytest.mark.usefixtures("few_partitions"),
]

Streams = dict[str, FileStream]


@pytest.fixture(scope="module")
def streams(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    made = tpcds_streams(tmp_path_factory.mktemp("tpcds"), 0.1, TABLES)
    with views(spark, made):
        yield made


@pytest.mark.parametrize("number", [*STREAMED, *STAGED])
def test_tpcds(spark: Any, streams: Streams, tmp_path: Path, number: int) -> None:
    sql = benchmark_text(number)
    mode = "complete" if number in STREAMED else "staged"
    found = answers(spark, sql, mode, tmp_path, memory="16m", buckets=4)
    assert found.merged == [(STREAMED | STAGED)[number]]
    for batch in COMPARED:
        assert not differing_rows(found.after[batch], expected(streams, sql, batch)), batch
    assert found.after[-1], "a query without rows shows nothing"


def test_the_query_of_the_paper(spark: Any, streams: Streams, tmp_path: Path) -> None:
    found = answers(spark, PAPER, "append", tmp_path, memory="16m", buckets=4)
    assert found.merged == [4]
    for batch in COMPARED:
        assert not differing_appended(streams, PAPER, tmp_path, batch), batch
