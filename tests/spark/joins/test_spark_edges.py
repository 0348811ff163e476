"""Odd inputs of multiway_join: names, types, silent streams, huge rows, files that go."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import State, multiway_join
from support.spark_streams import (
    BACKEND,
    FileStream,
    assert_same_rows,
    collected,
    committed,
    run_to_end,
)

pytestmark = pytest.mark.spark


def stream_of(spark: Any, frame: Any, directory: Path) -> Any:
    """The rows of a batch as a stream of one file."""
    frame.coalesce(1).write.parquet(str(directory))
    return spark.readStream.schema(frame.schema).parquet(str(directory))


def pair(spark: Any, home: Path) -> dict[str, Any]:
    table = pa.table({"k": pa.array([1, 2], pa.int64())})
    return {name: FileStream(home / name, "k BIGINT").add(table).read(spark) for name in "ab"}


@pytest.mark.stress
def test_odd_names_and_nested_types_come_through(spark: Any, tmp_path: Path) -> None:
    """Names like our own, with dots and quotes, many columns, one stream twice, one bucket."""
    odd = spark.sql(
        """SELECT 1 AS k0, 2 AS `Lsmstate K0`, 3 AS bucket, 4 AS payload, 5 AS `a.b`, 6 AS `straße`,
        7 AS `strasse`, 8 AS `日本`, 9 AS `x``y`, INTERVAL '1' DAY AS span,
        map('a', timestamp'2024-01-01 00:00:00') AS m,
        named_struct('t', timestamp'2024-07-01 00:00:00', 'm', map(1, array(2.5D))) AS s,
        CAST('x' AS STRING COLLATE UTF8_LCASE) AS lower"""
    )
    wide = spark.range(1, 3).select("id", *[(F.col("id") + i).alias(f"c{i}") for i in range(200)])
    narrow = pair(spark, tmp_path)["a"]
    left = stream_of(spark, odd, tmp_path / "left")
    right = stream_of(spark, wide, tmp_path / "right")
    joined = multiway_join(
        {"ä b": left, "日": right, "one": narrow, "two": narrow},
        on="`ä b`.K0 = 日.id AND 日.id = one.K AND one.k = two.k",
        state=State(memory=5 << 20, buckets=1, backend=BACKEND),
    )
    assert joined.columns[: len(odd.columns)] == odd.columns
    assert joined.columns[-3:] == ["c199", "one_k", "two_k"]
    values = (*odd.collect()[0], *wide.where("id = 1").collect()[0], 1, 1)
    assert list(map(tuple, collected(joined, tmp_path))) == [values]


@pytest.mark.stress
def test_a_stream_that_never_speaks_and_more_buckets_than_partitions(
    spark: Any, tmp_path: Path
) -> None:
    streams = pair(spark, tmp_path)
    (tmp_path / "void").mkdir()
    void = spark.readStream.schema("k BIGINT").parquet(str(tmp_path / "void"))
    everyone = multiway_join(
        {**streams, "void": void}, on=["k"], state=State(buckets=9, backend=BACKEND)
    )
    assert collected(everyone, tmp_path / "first") == []
    silent = multiway_join({"x": void, "y": void}, on=["k"], state=State(backend=BACKEND))
    assert collected(silent, tmp_path / "second") == []
    FileStream(tmp_path / "void", "k BIGINT").add(pa.table({"k": pa.array([2, 3], pa.int64())}))
    assert [tuple(row) for row in collected(everyone, tmp_path / "first")] == [(2, 2, 2)]


@pytest.mark.stress
def test_a_row_too_large_for_the_cap_is_an_error_that_says_so(spark: Any, tmp_path: Path) -> None:
    big = spark.sql("SELECT 1 AS k, repeat('x', 8000000) AS text")
    streams = {"a": stream_of(spark, big, tmp_path / "big"), **{"b": pair(spark, tmp_path)["b"]}}
    joined = multiway_join(streams, on=["k"], state=State(memory="16m", backend=BACKEND))
    with pytest.raises(StreamingQueryException, match=r"MemoryLimitError.*a quarter of"):
        collected(joined, tmp_path / "first")
    joined = multiway_join(streams, on=["k"], state=State(memory="64m", backend=BACKEND))
    assert [len(row.text) for row in collected(joined, tmp_path / "second")] == [8_000_000]


def test_two_joins_in_one_query_are_refused(spark: Any, tmp_path: Path) -> None:
    streams = pair(spark, tmp_path)
    first = multiway_join(streams, on=["k"]).select(F.col("a_k").alias("k"))
    with pytest.raises(InvalidArgumentError, match="'j' is the result of another multiway_join"):
        multiway_join({"j": first, "b": streams["b"]}, on=["k"])
    second = multiway_join({"c": streams["a"], "d": streams["b"]}, on=["k"]).select("c_k")
    with pytest.raises(AnalysisException, match="multiway_join_may_stand_once_in_a_query"):
        first.union(second).schema  # noqa: B018


def test_a_batch_that_is_not_read_to_its_end_is_an_error(spark: Any, tmp_path: Path) -> None:
    """The operator of such a batch leaves no state; Spark says so rather than lose rows."""
    joined = multiway_join(pair(spark, tmp_path), on=["k"], state=State(backend=BACKEND))
    query = (
        joined.writeStream.foreachBatch(lambda batch, _: batch.take(1))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    cause = query._jsq.exception().get().cause().getCause().toString()
    assert "STATE_STORE_COMMIT_VALIDATION_FAILED" in cause


@pytest.fixture
def unvalidated(spark: Any) -> Iterator[None]:
    """Spark's check that every partition has committed its state, switched off."""
    check = "spark.sql.streaming.stateStore.commitValidation.enabled"
    spark.conf.set(check, "false")
    yield
    spark.conf.unset(check)


def three_batches(spark: Any, home: Path, write: Any) -> Any:
    """A query that reads three files of each input; every batch goes to ``write(rows, number)``."""
    keys = [pa.table({"k": pa.array(range(i, i + 20), pa.int64())}) for i in range(3)]
    streams = {n: FileStream(home / n, "k BIGINT").add(*keys).read(spark) for n in "ab"}
    joined = multiway_join(streams, on=["k"], state=State(buckets=4, backend=BACKEND))
    writer = joined.writeStream.foreachBatch(write).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(home / "checkpoint")).start()


@pytest.mark.stress
@pytest.mark.usefixtures("unvalidated")
def test_a_batch_read_in_part_is_an_error_later_where_spark_does_not_check(
    spark: Any, tmp_path: Path
) -> None:
    """The next batch that needs the state which was never handed over does not find it."""
    query = three_batches(spark, tmp_path, lambda b, i: b.collect() if i else b.take(1))
    with pytest.raises(StreamingQueryException, match="CANNOT_LOAD_STATE_STORE"):
        query.awaitTermination()


@pytest.mark.stress
def test_batches_that_are_looked_at_before_or_without_reading_them(
    spark: Any, tmp_path: Path
) -> None:
    """Batch 0 is asked whether it is empty, 1 is read after that, 2 after a part of it was."""
    got: dict[int, list[Any]] = {0: [], 1: [], 2: []}

    def write(batch: Any, number: int) -> None:
        if number < 2:
            assert not batch.isEmpty()
        else:
            assert len(batch.take(1)) == 1
        if number > 0:
            got[number] += [row.a_k for row in batch.collect()]

    three_batches(spark, tmp_path, write).awaitTermination()
    seen: list[int] = []
    for number in range(3):
        before = Counter(seen)
        seen += range(number, number + 20)
        now = Counter(seen)
        new = {k: now[k] ** 2 - before[k] ** 2 for k in now if now[k] > before[k]}
        assert Counter(got[number]) == (new if number else {})


@pytest.mark.stress
def test_files_of_batches_that_spark_forgot_are_removed(spark: Any, tmp_path: Path) -> None:
    batches, retained = 12, 2
    streams = {name: FileStream(tmp_path / name, f"{name}_k BIGINT") for name in "ab"}
    for stream, name in zip(streams.values(), "ab", strict=True):
        for number in range(batches):
            keys = pa.array(range(number, number + 20), pa.int64())
            stream.add(pa.table({f"{name}_k": keys}))

    def joined() -> Any:
        frames = {name: stream.read(spark) for name, stream in streams.items()}
        return multiway_join(frames, on="a.a_k = b.b_k", state=State(backend=BACKEND, buckets=2))

    setting = "spark.sql.streaming.minBatchesToRetain"
    spark.conf.set(setting, retained)
    try:
        run_to_end(joined(), tmp_path / "checkpoint", tmp_path / "out")
        kept = sorted((tmp_path / "checkpoint" / "lsmstate").glob("bucket-*/*.sst"))
        by_batch = [int(path.name.split("-")[1]) for path in kept]
        assert min(by_batch) > 0, (
            "what the first batch sealed has been merged and is needed no more"
        )
        assert len(kept) < 2 * batches
        for stream, name in zip(streams.values(), "ab", strict=True):
            stream.add(pa.table({f"{name}_k": pa.array(range(40), pa.int64())}))
        run_to_end(joined(), tmp_path / "checkpoint", tmp_path / "out")
    finally:
        spark.conf.unset(setting)
    sql = f"SELECT * FROM {streams['a'].sql} JOIN {streams['b'].sql} ON a_k = b_k"
    assert_same_rows(sql, committed(tmp_path / "out"), at_least=1000)
