"""The four streams through Kafka: each is written once to a topic, in random order, and read there.

Spark's connector also writes them, so no other client is needed. Rows travel as JSON.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from lsmstate.spark_integration.demo.kafka_broker import PackageUnavailableError
from lsmstate.spark_integration.demo.query import ALIASES
from lsmstate.spark_integration.demo.tpcds import SHUFFLE_SEED, StreamFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_GROUP: Final = "org.apache.spark"
_CONNECTOR: Final = "spark-sql-kafka-0-10_2.13"
_TOKENS: Final = "spark-token-provider-kafka-0-10_2.13"
#: What is tried where Maven Central has no connector of Spark's own version: one that works with
#: PySpark 4.3 all the same, and the nearest release of the part it needs.
_OTHERWISE: Final = (
    f"ivy://{_GROUP}:{_TOKENS}:4.1.0-preview1?transitive=false",
    f"ivy://{_GROUP}:{_CONNECTOR}:4.2.0?exclude={_GROUP}:{_TOKENS}",
)
#: The broker is on this machine, which may stand still for half a minute where it is shared. One
#: request at a time: of a topic that is just being made the broker may turn the first one away and
#: take the one behind it, and then refuses the first, which comes again, for being out of order.
_WRITER_OPTIONS: Final = {
    "kafka.max.in.flight.requests.per.connection": "1",
    "kafka.max.block.ms": "300000",
    "kafka.request.timeout.ms": "300000",
    "kafka.delivery.timeout.ms": "600000",
}


def add_connector(spark: "SparkSession") -> None:
    """Add the Kafka source and sink to a session. Spark fetches the connector from Maven
    Central, or from the mirror it is set up with, and caches it. PackageUnavailableError if
    there is none."""
    choices = ([f"ivy://{_GROUP}:{_CONNECTOR}:{spark.version}"], _OTHERWISE)
    for packages in choices:
        try:
            _add(spark, packages)
        except Py4JJavaError as error:
            refusal = error
        else:
            return
    raise PackageUnavailableError(
        f"{_CONNECTOR} {spark.version} could not be fetched: Maven Central, or what Spark is set "
        "up to use in its place, cannot be reached or lacks it"
    ) from refusal


def _add(spark: "SparkSession", packages: Sequence[str]) -> None:
    for package in packages:
        spark.sql(f"ADD JAR '{package}'")


def produce(spark: "SparkSession", address: str, topic: str, rows: "DataFrame") -> None:
    """Write the rows to a topic, in an order that is random and the same in every run."""
    shuffled = rows.select(F.to_json(F.struct("*")).alias("value")).orderBy(F.rand(SHUFFLE_SEED))
    writer = shuffled.write.format("kafka").option("kafka.bootstrap.servers", address)
    writer.options(**_WRITER_OPTIONS).option("topic", topic).save()


def consume(
    spark: "SparkSession", address: str, topic: str, like: "DataFrame", per_batch: int
) -> "DataFrame":
    """Read a topic from its beginning, as a stream with the columns of ``like``."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    found = reader.option("maxOffsetsPerTrigger", per_batch).load()
    parsed = F.from_json(F.col("value").cast("string"), like.schema, {"mode": "FAILFAST"})
    return found.select(parsed.alias("row")).select("row.*")


def kafka_streams(
    spark: "SparkSession", files: StreamFiles, address: str
) -> "dict[str, DataFrame]":
    """Streams like those of ``read_streams``, through a broker, in about as many micro-batches as
    files."""
    streams = {}
    for alias, table in ALIASES.items():
        rows = spark.read.parquet(str(files.table(table)))
        produce(spark, address, table, rows)
        per_batch = -(-rows.count() // files.batches)
        streams[alias] = consume(spark, address, table, rows, per_batch)
    return streams
