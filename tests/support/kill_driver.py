"""A program that a test kills: join streams until everything that has arrived is done.

python kill_driver.py HOME FILES      (FILES a micro-batch of each of HOME/a, HOME/b, HOME/c)

LSMSTATE_PROVIDER says where Spark keeps the commit pointers: see PROVIDERS. LSMSTATE_JOIN says what
is joined: see JOINS. LSMSTATE_DRIVER, if there, is JSON with any of ``master``, ``settings`` (of
Spark's), ``join`` (arguments of the join's) and ``checkpoint``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(ROOT), str(TESTS)]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(TESTS), os.environ.get("PYTHONPATH", "")]
)

from support.grouped import grouped  # noqa: E402
from support.spark_streams import FileStream, run_to_end  # noqa: E402

NAMES = ("a", "b", "c")
_CLASS = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: Spark's state stores, by a short name. With checkpoints of format 2 each attempt's changes are
#: files of its own.
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {_CLASS: _ROCKSDB},
    "rocksdb-2": {_CLASS: _ROCKSDB, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"},
}
#: By name: the streams, the join, its arguments, and the same in DuckDB's SQL over {a}, {b}, {c}.
JOINS = {
    "keys": (
        NAMES,
        "a.a_k = b.b_k AND a.a_k = c.c_k",
        {},
        "SELECT * FROM {a} JOIN {b} ON a_k = b_k JOIN {c} ON a_k = c_k",
    ),
    "range": (
        ("a", "b"),
        "a LEFT JOIN b ON a.a_k BETWEEN b.b_k - 1 AND b.b_k + 1 AND a.a_text <> b.b_text",
        {"emit": "changes"},
        "SELECT * FROM {a} LEFT JOIN {b} ON a_k BETWEEN b_k - 1 AND b_k + 1",
    ),
    # Routed by ranges, whose tables change.
    "band": (("a", "b"), None, {}, "SELECT * FROM {a} JOIN {b} ON abs(a_k - b_k) <= 1"),
    # Documents that share ``k``; their tables of routes change.
    "documents": (("a", "b"), None, {}, "SELECT * FROM {a} JOIN {b} ON a_k = b_k"),
    # Vectors at most 1 apart; their worksets move between buckets.
    "similarity": (
        ("a", "b"),
        None,
        {},
        "SELECT * FROM {a} JOIN {b} ON a_k BETWEEN b_k - 1 AND b_k + 1",
    ),
    # Groups in update mode, computed inside the join: the last row of each counts.
    "aggregates": (
        NAMES,
        None,
        {},
        "SELECT a_k % 50 AS g, count(*) AS n, sum(b_k) AS total, max(c_text) AS last "
        "FROM {a} JOIN {b} ON a_k = b_k JOIN {c} ON a_k = c_k GROUP BY g",
    ),
}


def streams(home: Path) -> dict[str, FileStream]:
    return {name: FileStream(home / name, f"{name}_k BIGINT, {name}_text STRING") for name in NAMES}


def joined_documents(frames: Any) -> Any:
    """Two streams as documents that share ``k``, by groups of values that learn."""
    from pyspark.sql import functions as F

    from lsmstate.spark import State, natural_join

    documents = {
        name: frames[name].withColumn(
            f"{name}_doc", F.struct(F.col(f"{name}_k").alias("k"), F.col(f"{name}_text"))
        )
        for name in "ab"
    }
    found = natural_join(
        documents, {name: f"{name}_doc" for name in "ab"}, routing="association_groups",
        unknown="broadcast", state=State(memory="16m", buckets=4),
    )  # fmt: skip
    return found.select("a_k", "a_text", "b_k", "b_text")


def joined_vectors(frames: Any) -> Any:
    """Two streams of vectors of one number, by pivots."""
    from pyspark.sql import functions as F

    from lsmstate.spark import Skew, State, similarity_join

    vectors = {
        name: frames[name].withColumn(f"{name}_v", F.array(F.col(f"{name}_k").cast("double")))
        for name in "ab"
    }
    found = similarity_join(
        vectors, "a.a_v ~ b.b_v", metric="l2", threshold=1, algorithm="pivots",
        skew=Skew(routing="worksets"), state=State(memory="16m", buckets=4),
    )  # fmt: skip
    return found.select("a_k", "a_text", "b_k", "b_text")


def joined_band(frames: Any) -> Any:
    """Two streams by a band, over so many buckets that ranges are the cheaper routing."""
    from lsmstate.spark import State, explain_join, multiway_join

    found = multiway_join(
        {name: frames[name] for name in "ab"},
        "abs(a.a_k - b.b_k) <= 1",
        state=State(memory="16m", buckets=8),
    )
    assert "routing ranges" in explain_join(found)
    return found


def joined_groups(frames: Any) -> Any:
    """Three streams by their keys, and groups of the results."""
    from pyspark.sql import functions as F

    from lsmstate.spark import State, multiway_join, to_multiway

    found = multiway_join(frames, JOINS["keys"][1], state=State(memory="16m", buckets=4))
    groups = found.groupBy((F.col("a_k") % 50).alias("g")).agg(
        F.count("*").alias("n"), F.sum("b_k").alias("total"), F.max("c_text").alias("last")
    )
    return to_multiway(groups)


#: Joins that are no ``multiway_join`` with the usual arguments, or have something above it.
_MADE = {
    "band": joined_band,
    "documents": joined_documents,
    "similarity": joined_vectors,
    "aggregates": joined_groups,
}


def run_in_update_mode(groups: Any, checkpoint: Path, out: Path) -> None:
    """Until everything is done. A repeated micro-batch writes over the groups of its first run."""
    query = (
        groups.writeStream.foreachBatch(
            lambda rows, number: rows.write.mode("overwrite").parquet(str(out / f"batch={number}"))
        )
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    from pyspark.sql import SparkSession

    from lsmstate.spark import multiway_join

    home, files_per_batch = Path(sys.argv[1]), int(sys.argv[2])
    wanted = json.loads(os.environ.get("LSMSTATE_DRIVER", "{}"))
    spark = (
        # A task may fail, as it does when its worker is killed, and is done again.
        SparkSession.builder.master(wanted.get("master", "local[2,8]"))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        # Sessions are short: what a compiler or collector of more threads would save comes late.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.python.daemon.module", "support.faulty_daemon")
        # So few that files are collected while things die.
        .config("spark.sql.streaming.minBatchesToRetain", "4")
        .config(map=PROVIDERS[os.environ["LSMSTATE_PROVIDER"]])
        .config(map=wanted.get("settings", {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    asked = os.environ.get("LSMSTATE_JOIN", "keys")
    names, on, options, _ = JOINS[asked]
    frames = {name: streams(home)[name].read(spark, files_per_batch) for name in names}
    if on is None:
        joined = _MADE[asked](frames)
    else:
        joined = multiway_join(
            frames, on=on, **grouped(memory="16m", **options, **wanted.get("join", {}))
        )
    print("started", flush=True)
    run = run_in_update_mode if asked == "aggregates" else run_to_end
    run(joined, wanted.get("checkpoint", home / "checkpoint"), home / "out")
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
