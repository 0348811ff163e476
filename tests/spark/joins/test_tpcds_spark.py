"""The paper's query at scale 0.1 on Spark: every row and column equals DuckDB's, types included."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lsmstate.spark import State, multiway_join
from lsmstate.spark_integration.demo.check import compare
from lsmstate.spark_integration.demo.query import CONDITION, batch_sql, read_streams, written_files
from lsmstate.spark_integration.demo.tpcds import StreamFiles, stream_files
from lsmstate.spark_integration.metrics.reports import by_name
from support.paths import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: Little enough that the state of a worker (two to three MiB a table) does not stay in memory.
MEMORY = "6m"

#: TPC-DS's date keys count days from here; as a DATE it is a type the four tables lack.
FIRST_DAY = "DATE '1900-01-02'"
FIRST_DAY_SK = 2_415_022


@pytest.fixture(scope="module")
def files() -> StreamFiles:
    return stream_files(ROOT / ".data", 0.1, 5)


def joined_streams(spark: "SparkSession", files: StreamFiles) -> "DataFrame":
    """The query, with a nullable DATE column beside the decimals, longs, integers and strings."""
    streams = read_streams(spark, files)
    day = f"date_add({FIRST_DAY}, CAST(sr_returned_date_sk - {FIRST_DAY_SK} AS INT))"
    streams["sr"] = streams["sr"].selectExpr("*", f"{day} AS sr_returned_date")
    return multiway_join(streams, on=CONDITION, state=State(memory=MEMORY))


def expected_sql(files: StreamFiles) -> str:
    source = f"'{files.glob('store_returns')}' sr"
    day = f"{FIRST_DAY} + (sr_returned_date_sk - {FIRST_DAY_SK})::INTEGER"
    dated = f"(SELECT *, ({day})::DATE AS sr_returned_date FROM {source}) sr"
    sql = batch_sql(files)
    assert source in sql
    return sql.replace(source, dated)


@pytest.mark.stress
def test_the_whole_result_equals_duckdb_s(
    spark: "SparkSession", files: StreamFiles, tmp_path: Path
) -> None:
    joined = joined_streams(spark, files)
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "output"))
    )
    query.awaitTermination()
    found = compare(expected_sql(files), written_files(spark, tmp_path / "output"), exact=True)
    assert found.difference == ""
    assert found.expected_rows == found.output_rows > 200_000
    types = {field.name: field.dataType.simpleString() for field in joined.schema}
    assert types["sr_returned_date"] == "date"
    assert types["sr_return_amt"] == "decimal(7,2)"
    assert types["c_last_review_date_sk"] == "int"
    assert types["c_current_addr_sk"] == "bigint"
    observed = [by_name(p.observedMetrics["lsmstate"]) for p in query.recentProgress]
    assert max(row["peak_state_bytes"] for row in observed) <= 6 << 20
    assert sum(row["rows_out"] for row in observed) == found.output_rows


@pytest.mark.stress
def test_stopped_in_the_middle_and_restarted_with_other_partitions(
    spark: "SparkSession", files: StreamFiles, tmp_path: Path
) -> None:
    setting = "spark.sql.shuffle.partitions"
    before = spark.conf.get(setting)
    try:
        spark.conf.set(setting, "2")
        first = start(spark, files, tmp_path).start(str(tmp_path / "output"))
        deadline = time.monotonic() + 240
        while first.lastProgress is None or first.lastProgress.batchId < 1:
            assert first.exception() is None, first.exception()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        first.stop()
        done = written_files(spark, tmp_path / "output")
        assert 0 < compare(expected_sql(files), done).output_rows < 200_000
        spark.conf.set(setting, "5")
        rest = start(spark, files, tmp_path).trigger(availableNow=True)
        second = rest.start(str(tmp_path / "output"))
        second.awaitTermination()
        assert second.recentProgress[0].batchId >= 2
    finally:
        spark.conf.set(setting, str(before))
    found = compare(expected_sql(files), written_files(spark, tmp_path / "output"), exact=True)
    assert found.difference == ""
    assert found.output_rows > 200_000


def start(spark: "SparkSession", files: StreamFiles, directory: Path) -> "DataStreamWriter":
    writer = joined_streams(spark, files).writeStream.format("parquet")
    return writer.option("checkpointLocation", str(directory / "checkpoint"))
