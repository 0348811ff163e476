"""The query of the UMJoin paper: its streams in Spark, its condition, and the same query in SQL."""

from pathlib import Path
from typing import TYPE_CHECKING

from lsmstate.spark_integration.demo.tpcds import TABLES, StreamFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Short names of the streams, in the order of their columns in the result.
ALIASES = {
    "sr": "store_returns",
    "cu": "customer",
    "wr": "web_returns",
    "cr": "catalog_returns",
}
assert tuple(ALIASES.values()) == TABLES

CONDITION = (
    "cu.c_current_addr_sk = cr.cr_refunded_addr_sk"
    " AND cu.c_current_addr_sk = sr.sr_addr_sk"
    " AND cu.c_current_addr_sk = wr.wr_refunded_addr_sk"
)


def read_streams(spark: "SparkSession", files: StreamFiles) -> "dict[str, DataFrame]":
    """The four tables as streams of one file per micro-batch, by short name."""
    streams = {}
    for alias, table in ALIASES.items():
        directory = str(files.table(table))
        schema = spark.read.parquet(directory).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        streams[alias] = reader.parquet(directory)
    return streams


def batch_sql(files: StreamFiles) -> str:
    """The same query for DuckDB, over all files at once."""
    sources = ", ".join(f"'{files.glob(table)}' {alias}" for alias, table in ALIASES.items())
    return f"SELECT * FROM {sources} WHERE {CONDITION}"


def written_files(spark: "SparkSession", output: Path) -> list[str]:
    """The Parquet files that a streaming sink has committed, without those of failed attempts."""
    from urllib.parse import unquote, urlparse

    return [unquote(urlparse(file).path) for file in spark.read.parquet(str(output)).inputFiles()]
