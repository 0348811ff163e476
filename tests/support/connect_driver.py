"""A client of Spark Connect, in a process without a JVM: what the join answers it, as JSON.

python connect_driver.py HOME URL PART      (streams ``a`` and ``b`` lie in HOME/a and HOME/b)

PART is ``joins``, or ``others``: modes, functions of the user's and SQL.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lsmstate.spark import State, multiway_join, stateful_batches, streaming_sql, to_multiway
from support.grouped import grouped
from support.spark_streams import FileStream, run_to_end

SCHEMA = "k BIGINT, day DATE, price DECIMAL(9,2)"

SQL = "SELECT a.k, b.day AS later FROM a JOIN b ON a.k = b.k"


class Client:
    """Steps of one user; ``seen`` keeps what each of them saw."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self.spark = SparkSession.builder.remote(url).getOrCreate()
        self.streams = {name: FileStream(home / name, SCHEMA, files=1) for name in "ab"}
        self.seen: dict[str, str] = {}

    def joined(self, state: str | None = "state", **options: Any) -> Any:
        frames = {n: s.read(self.spark, files_per_batch=9) for n, s in self.streams.items()}
        state_dir = state and str(self.home / state)
        return multiway_join(frames, **grouped(**{"on": ["k"], "state_dir": state_dir, **options}))

    def run(self, checkpoint: str, **options: Any) -> None:
        """All that has arrived; the result of a checkpoint lies beside it."""
        joined = self.joined(**options)
        run_to_end(joined, self.home / checkpoint, self.home / f"{checkpoint}-out")

    def run_stateful(self) -> None:
        """The keys of both streams, which take the way through the store."""

        def keys(_bucket: Any, batches: Any, store: Any) -> Any:
            for batch in batches:
                store.append("seen", batch.keys, batch.keys)
            for seen in store.iterate("seen"):
                yield seen.keys

        frames = {n: s.read(self.spark, files_per_batch=9) for n, s in self.streams.items()}
        result = stateful_batches(
            frames,
            key="k",
            function=keys,
            streams={"seen": "k BIGINT"},
            schema="k BIGINT",
            state=State(state_dir=str(self.home / "stateful")),
        )
        run_to_end(result, self.home / "stateful-checkpoint", self.home / "stateful-out")

    def add_rows(self) -> None:
        for stream in self.streams.values():
            stream.add(pa.table({"k": pa.array([1, 7], pa.int64())}))

    def name_streams(self) -> None:
        for name, stream in self.streams.items():
            stream.read(self.spark, files_per_batch=9).createOrReplaceTempView(name)

    def run_sql(self) -> None:
        """Joins in SQL, which Spark runs: Connect shows no plans."""
        self.name_streams()
        query = streaming_sql(self.spark, SQL)
        self.seen["note of sql"] = query.note
        self.seen["note of a frame"] = to_multiway(self.spark.sql(SQL)).note
        run_to_end(query, self.home / "sql-checkpoint", self.home / "sql-out")

    def writer(self, joined: Any, checkpoint: str) -> Any:
        writer = joined.writeStream.format("noop")
        return writer.option("checkpointLocation", str(self.home / checkpoint))

    def note(self, step: str, action: Callable[[], Any]) -> None:
        try:
            action()
            self.seen[step] = "no error"
        except Exception as error:  # noqa: BLE001 - the test looks at all of them
            self.seen[step] = f"{type(error).__name__}: {error}"


def main(home: Path, url: str, part: str) -> None:
    client = Client(home, url)
    {"joins": run_joins, "others": run_others}[part](client)
    print(json.dumps(client.seen))
    client.spark.stop()


def run_joins(client: Client) -> None:
    spark, note = client.spark, client.note
    note("no state_dir", lambda: client.joined(state=None))
    note("own column", lambda: client.joined().select(client.streams["a"].read(spark)["k"]).schema)
    twice = client.joined().union(client.joined())
    note("used twice", client.writer(twice, "checkpoint-twice").start)

    note("first run", lambda: client.run("checkpoint"))
    client.add_rows()
    note("another join", lambda: client.run("checkpoint", on=["k", "day"]))
    note("another query", lambda: client.run("checkpoint-of-another"))
    note("lost state", lambda: client.run("checkpoint", state="nowhere"))
    note("second run", lambda: client.run("checkpoint"))
    client.name_streams()
    note("strict sql", lambda: streaming_sql(spark, SQL, strict=True))


def run_others(client: Client) -> None:
    spark, note, home = client.spark, client.note, client.home
    client.add_rows()
    flush = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(flush, "0")
    note("results without bound", lambda: client.run("checkpoint-0", state="state-0"))
    spark.conf.unset(flush)

    writer = client.writer(client.joined("state-of-modes"), "checkpoint-of-modes")
    note("real-time mode", writer.outputMode("update").trigger(realTime="30 seconds").start)
    writer = client.writer(client.joined("state-of-modes"), "checkpoint-of-modes")
    late = writer.option("asyncProgressTrackingEnabled", "true")
    note("async progress tracking", lambda: late.start().awaitTermination(60))
    note("right mode", lambda: client.run("checkpoint-of-modes", state="state-of-modes"))
    note("stateful", client.run_stateful)
    note("sql", client.run_sql)
    note("staged sql", lambda: streaming_sql(spark, SQL).staged(str(home / "staged")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
