"""Event time on Spark: joins that forget, late rows, and operators above the join."""

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import QueryState, State, Time, explain_join, multiway_join, rescale
from lsmstate.state_location import StatePlace, open_bucket
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, metric
from support.spark_timed_streams import (
    ON,
    POLICY,
    START,
    by_duckdb,
    hourly,
    read,
    run,
    run_query,
    stream,
    table,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

CORRECTNESS = "spark.sql.streaming.statefulOperator.checkCorrectness.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_a_distance_is_the_condition_that_says_it(spark: Any, tmp_path: Path) -> None:
    """Written by hand and by ``within``, with a Column and with lists of keys."""
    a, b = hourly(tmp_path, "a", 0, 2, 1), hourly(tmp_path, "b", 0, 2, 2)
    streams = {"a": read(spark, a), "b": read(spark, b)}
    by_hand = "a.k = b.k AND a.at BETWEEN b.at - INTERVAL 10 MINUTES AND b.at + INTERVAL 10 MINUTES"
    kept = explain_join(multiway_join(streams, by_hand)).splitlines()[-1]
    assert "a: until the watermark is 0:10:00 past at" in kept
    time = Time(within="10 minutes")
    for on in ("a.k = b.k", F.col("a.k") == F.col("b.k"), ["k"], {"a": ["k"], "b": ["k"]}):
        assert explain_join(multiway_join(streams, on, time=time)).splitlines()[-1] == kept
    rates = spark.readStream.format("rate").load()
    with pytest.raises(InvalidArgumentError, match=r"stream 'b' has no event time; give it a w"):
        multiway_join({"a": streams["a"], "b": rates}, "a.k = b.value", time=time)


@pytest.mark.stress
def test_rows_within_a_distance_are_joined(spark: Any, tmp_path: Path) -> None:
    a, b = hourly(tmp_path, "a", 0, 2, 1), hourly(tmp_path, "b", 0, 2, 2)
    streams = {"a": read(spark, a), "b": read(spark, b)}
    shown = multiway_join(streams, ["k"], time=Time(within="10 minutes")).select("na", "nb")
    sql = (
        f"SELECT na, nb FROM {a.sql} a JOIN {b.sql} b ON a.k = b.k "
        "AND abs(epoch(a.at) - epoch(b.at)) <= 600"
    )
    assert Counter(run(shown, tmp_path)) == Counter(by_duckdb(sql))


@pytest.mark.stress
@pytest.mark.parametrize(
    ("window", "size", "slide"), [("1 hour", 60, 60), (("1 hour", "25 minutes"), 60, 25)]
)
def test_rows_of_one_window_are_joined(
    spark: Any, tmp_path: Path, window: Any, size: int, slide: int
) -> None:
    """Inner with another condition beside it, left as final results, and another window refused."""
    a, b = hourly(tmp_path, "a", 0, 3, 1), hourly(tmp_path, "b", 0, 3, 2)
    streams = {"a": read(spark, a), "b": read(spark, b)}
    joined = multiway_join(streams, "a.k = b.k AND a.na <> b.nb", time=Time(window=window))
    assert "a: until the watermark is 1:00:00 past at" in explain_join(joined)
    start = f"floor(epoch(least(a.at, b.at)) / {60 * slide}) * {60 * slide}"
    # DuckDB's greatest and least leave nulls out.
    known = "a.at IS NOT NULL AND b.at IS NOT NULL"
    inside = f"{known} AND epoch(greatest(a.at, b.at)) < {start} + {60 * size}"
    sql = f"SELECT na, nb FROM {a.sql} a {{}} JOIN {b.sql} b ON a.k = b.k AND {inside}"
    found = run(joined.select("na", "nb"), tmp_path)
    assert Counter(found) == Counter(by_duckdb(sql.format("") + " AND na <> nb"))
    assert len(found) > 20
    other = multiway_join(streams, "a.k = b.k AND a.na <> b.nb", time=Time(within="1 hour"))
    with pytest.raises(Exception, match="other conditions"):
        run(other.select("na", "nb"), tmp_path)
    home = tmp_path / "left"
    home.mkdir()
    for name, source in (("a", a), ("b", b)):
        source.add(table(name, [(1000, 48, 0)]))
    left = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)},
        "a.k = b.k",
        how="left",
        emit="final",
        time=Time(window=window),
    )
    last = f" WHERE a.at < TIMESTAMP '{START + timedelta(hours=20):%Y-%m-%d %H:%M:%S}'"
    shown = left.where(F.col("a_at") < F.lit(START + timedelta(hours=20))).select("na", "nb")
    assert Counter(run(shown, home)) == Counter(by_duckdb(sql.format("LEFT") + last))


def joined_sql(a: FileStream, b: FileStream) -> str:
    return (
        f"SELECT na, nb, greatest(a.at, b.at) AS latest FROM {a.sql} a JOIN {b.sql} b ON a.k = b.k "
        "AND b.at BETWEEN a.at - INTERVAL 30 MINUTES AND a.at + INTERVAL 1 HOUR"
    )


@pytest.fixture
def unchecked(spark: Any) -> Iterator[None]:
    """Spark's refusal of whatever it holds for risky above an operator with timeouts is off."""
    spark.conf.set(CORRECTNESS, "false")
    yield
    spark.conf.unset(CORRECTNESS)


@pytest.mark.skipif(BACKEND != "lsm", reason="looks at the state of the backend lsm")
def test_an_interval_join_forgets_and_goes_on(spark: Any, tmp_path: Path) -> None:
    a, b = hourly(tmp_path, "a", 0, 2, 1), hourly(tmp_path, "b", 0, 2, 2)
    options = {"on": ON, "memory": "8m", "buckets": 3}
    joined = multiway_join({"a": read(spark, a), "b": read(spark, b)}, **grouped(**options))
    assert "a: until the watermark is 1:00:00 past at" in explain_join(joined)
    assert "b: until the watermark is 0:30:00 past at" in explain_join(joined)
    shown = joined.select("na", "nb", F.greatest("a_at", "b_at").alias("latest"))
    found = run(shown, tmp_path)
    for source, seed in ((a, 3), (b, 4)):
        rows = hourly(tmp_path / "more", source.directory.name, 2, 2, seed)
        for path in sorted(rows.directory.glob("*.parquet")):
            source.add(pq.read_table(path))
    again, query = run_query(shown, tmp_path)
    found += again
    assert {row[:2] for row in found} == {row[:2] for row in by_duckdb(joined_sql(a, b))}
    assert sum(metric(query, "late_rows")) == 0
    # Batches without data, and buckets without rows, forget too: a day later all is gone.
    late = START + timedelta(days=2)
    for name, source in (("a", a), ("b", b)):
        days = (late - START) / timedelta(hours=1)
        source.add(table(name, [(1000, days, 0)]))
    run(shown, tmp_path)
    state = QueryState.open(str(tmp_path / "checkpoint"))
    left: Counter[str] = Counter()
    for bucket, pointer in state.pointers.items():
        with open_bucket(StatePlace(state.root), bucket, pointer) as store:
            for name in store.streams:
                rows_left = sum(piece.num_rows for piece in store.scan(name))
                left[name.split("@")[0]] += rows_left
    assert (left["a"], left["b"]) == (1, 1)
    other = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)},
        **grouped(**options, retention={"a": "10 minutes"}),
    )
    with pytest.raises(Exception, match=r"rows kept = \(a until.*1:00:00.*now has.*a until.*0:10"):
        run(other, tmp_path)


def window_sql(a: FileStream, b: FileStream, before: str) -> str:
    return (
        f"SELECT date_trunc('hour', latest) AS hour, count(*) AS n FROM ({joined_sql(a, b)}) "
        f"GROUP BY 1 HAVING hour + INTERVAL 1 HOUR <= TIMESTAMPTZ '{before}'"
    )


def counts_by_hour(result: Any, column: str) -> Any:
    return result.groupBy(F.window(column, "1 hour")).count().select("window.start", "count")


@pytest.mark.stress
def test_a_result_time_is_true_above_the_join(spark: Any, tmp_path: Path, unchecked: None) -> None:
    """A window in append mode, also while the join finds nothing and rows are filtered."""
    a, b = hourly(tmp_path, "a", 0, 3, 1), hourly(tmp_path, "b", 0, 3, 2)
    # From here on nothing matches, but time goes on.
    a.add(table("a", [(77, 9.0, 1)]), table("a", [(77, 20.0, 2)]))
    b.add(table("b", [(88, 9.0, 1)]), table("b", [(88, 20.0, 2)]))
    frames = {"a": read(spark, a), "b": read(spark, b)}
    on = f"{ON} AND a.na >= 0"
    options = {"backend": BACKEND, "memory": "8m", "buckets": 3}
    joined = multiway_join(frames, on, **grouped(result_time="latest", **options))
    counted = counts_by_hour(joined.where("nb >= 0"), "latest")
    found, query = run_query(counted, tmp_path)
    assert Counter({(s.astimezone(UTC), n): c for (s, n), c in found.items()}) == by_duckdb(
        window_sql(a, b, "2026-03-28 20:00:00+00")
    )
    # Ticks are no rows of the result.
    assert sum(metric(query, "rows_out")) == sum(by_duckdb(joined_sql(a, b)).values())


@pytest.mark.stress
def test_deduplication_by_time_above_a_result_time(
    spark: Any, tmp_path: Path, unchecked: None
) -> None:
    """A key comes once, and again when the watermark of a micro-batch before has passed it."""
    a = stream(tmp_path, "a", [(1, 0, 1), (2, 0, 2)], [(3, 5, 3)], [(4, 6, 4)], [(1, 9, 5)])
    b = stream(tmp_path, "b", [(1, 0.5, 1), (1, 0.6, 2), (2, 0, 3)], [(3, 5, 4)], [(4, 6, 5)])
    b.add(table("b", [(1, 9, 6)]))
    frames = {"a": read(spark, a), "b": read(spark, b)}
    joined = multiway_join(
        frames, ON, time=Time(result_time="latest"), state=State(backend=BACKEND, memory="8m")
    )
    once = joined.dropDuplicatesWithinWatermark(["a_k"]).select("a_k")
    assert run(once, tmp_path) == Counter({(1,): 2, (2,): 1, (3,): 1, (4,): 1})


@pytest.mark.stress
def test_the_fastest_stream_may_not_set_the_watermark_of_a_result_time(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    """A result time has no delay: rows within those of the inputs would come late."""
    frames = {name: read(spark, s, "1 hour") for name, s in zip("ab", short, strict=True)}
    joined = multiway_join(
        frames, ON, time=Time(result_time="latest"), state=State(backend=BACKEND)
    )
    spark.conf.set(POLICY, "max")
    try:
        refused(joined, tmp_path, "drop rows within the delays of the inputs")
    finally:
        spark.conf.unset(POLICY)


def third(spark: Any, home: Path) -> Any:
    """A stream for outer joins above: its keys are half of the others'."""
    files = [[(k, hour + 0.5, k) for k in range(0, 12, 2)] for hour in range(3)]
    c = stream(home, "c", *files, [(99, 20.0, 0)])
    return c, read(spark, c).select("k", F.col("at").alias("ct"), "nc")


def outer_join(result: Any, time: str, c: Any) -> Any:
    near = F.expr(f"c.k = r.a_k AND c.ct BETWEEN r.{time} AND r.{time} + INTERVAL 1 HOUR")
    return result.alias("r").join(c.alias("c"), near, "left_outer").select("na", "nb", "nc")


def outer_sql(a: FileStream, b: FileStream, c: FileStream, time: str) -> str:
    return (
        f"SELECT na, nb, nc FROM ({joined_sql(a, b)}) JOIN {a.sql} a USING (na) "
        f"LEFT JOIN {c.sql} c ON c.k = a.k AND c.at BETWEEN {time} AND {time} + INTERVAL 1 HOUR"
    )


def without_the_last(expected: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """What is as young as the last watermark still waits for a partner."""
    return Counter({row: n for row, n in expected.items() if row[:2] != (9999, 9999)})


@pytest.fixture
def short(spark: Any, tmp_path: Path) -> tuple[FileStream, FileStream]:
    a, b = hourly(tmp_path, "a", 0, 3, 1), hourly(tmp_path, "b", 0, 3, 2)
    return a.add(table("a", [(77, 20.0, 9999)])), b.add(table("b", [(77, 20.0, 9999)]))


@pytest.mark.stress
def test_an_outer_join_above_a_result_time(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream], unchecked: None
) -> None:
    a, b = short
    c, third_frame = third(spark, tmp_path)
    joined = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)},
        ON,
        time=Time(result_time="latest"),
        state=State(backend=BACKEND, memory="8m"),
    )
    found = run(outer_join(joined, "latest", third_frame), tmp_path)
    assert found == without_the_last(by_duckdb(outer_sql(a, b, c, "latest")))
    assert sum(n for row, n in found.items() if row[2] is None) > 10


# Above a join over the full history, whose output Spark knows no watermark of: each row of the
# table in fact 17.


def history(spark: Any, sources: tuple[FileStream, FileStream]) -> Any:
    """A join that forgets nothing: b has no watermark."""
    a, b = sources
    return multiway_join(
        {"a": read(spark, a), "b": b.read(spark)}, ON, state=State(backend=BACKEND)
    )


def refused(result: Any, home: Path, words: str) -> None:
    with pytest.raises(Exception, match=words):
        run(result, home)
    assert not (home / "checkpoint" / "lsmstate").exists()


@pytest.mark.stress
def test_deduplication_and_inner_joins_work_above(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    a, b = short
    c, third_frame = third(spark, tmp_path)
    once = history(spark, short).select("a_k", "na").dropDuplicates()
    found = run(once.join(third_frame, F.expr("k = a_k")).select("na", "nc"), tmp_path)
    once_sql = f"SELECT DISTINCT a.k, na FROM ({joined_sql(a, b)}) JOIN {a.sql} a USING (na)"
    assert found == by_duckdb(f"SELECT na, nc FROM ({once_sql}) JOIN {c.sql} USING (k)")


@pytest.mark.stress
def test_a_window_with_nothing_declared_is_refused_by_spark(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    counted = counts_by_hour(history(spark, short), "a_at")
    with pytest.raises(AnalysisException, match="without watermark"):
        run(counted, tmp_path)


def test_a_watermark_forged_by_hand_is_refused(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    forged = F.col("a_at").alias("a_at", metadata={"spark.watermarkDelayMs": 0})
    counted = counts_by_hour(history(spark, short).select(forged), "a_at")
    refused(counted, tmp_path, "never emit a row; give multiway_join a result time")


def test_an_outer_join_with_nothing_declared_is_refused(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    _, c = third(spark, tmp_path)
    result = outer_join(history(spark, short), "a_at", c)
    refused(result, tmp_path, "left outer join.*without a partner would never be emitted; give")


@pytest.mark.stress
def test_state_by_event_time_with_nothing_declared_is_refused(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802
            return iter(rows)

        def close(self) -> None:
            pass

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        counted = (
            history(spark, short)
            .groupBy("a_k")
            .transformWithStateInPandas(Counting(), "n BIGINT", "append", "EventTime")
        )
        refused(counted, tmp_path, "transformWithState in event time stands above multiway_join")
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


@pytest.mark.stress
def test_an_outer_join_with_a_watermark_declared_again(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    c, third_frame = third(spark, tmp_path)
    declared = history(spark, short).withWatermark("a_at", "2 hours")
    found = run(outer_join(declared, "a_at", third_frame), tmp_path)
    assert found == without_the_last(by_duckdb(outer_sql(*short, c, "a.at")))
    assert sum(n for row, n in found.items() if row[2] is None) > 10


@pytest.mark.stress
def test_a_window_declared_above_full_history_gives_what_sparks_own_join_does(
    spark: Any, tmp_path: Path
) -> None:
    """Its watermark is of its own, that of the result: it stands while the join finds nothing, as
    it does above Spark's join, and nothing is lost."""
    a = stream(tmp_path, "a", [(1, 0.0, 1)], [(1, 5.0, 2)], [(7, 9.0, 3)], [(7, 20.0, 4)])
    b = stream(tmp_path, "b", [(1, 0.5, 1)], [(1, 5.5, 2)], [(8, 9.0, 3)], [(8, 20.0, 4)])
    more = {"a": [(1, 4.5, 5), (1, 21.0, 6)], "b": [(1, 4.6, 5), (1, 21.5, 6)]}
    frames = {"a": a.read(spark), "b": b.read(spark)}

    def found(joined: Any, home: Path) -> Counter[tuple[Any, ...]]:
        declared = joined.select("a_at", "na", "nb").withWatermark("a_at", "2 hours")
        return run(counts_by_hour(declared, "a_at"), home)

    ours = multiway_join(frames, ON, state=State(backend=BACKEND, memory="8m"))
    theirs = frames["a"].alias("a").join(frames["b"].alias("b"), F.expr(ON))
    theirs = theirs.select(F.col("a.at").alias("a_at"), "na", "nb")
    before = [found(ours, tmp_path / "ours"), found(theirs, tmp_path / "theirs")]
    a.add(table("a", more["a"]))
    b.add(table("b", more["b"]))
    after = [found(ours, tmp_path / "ours"), found(theirs, tmp_path / "theirs")]
    assert before[0] == before[1]
    assert after[0] == after[1]
    assert [sum(each[0].values()) for each in (before, after)] == [1, 2]


def test_a_window_with_a_watermark_declared_again(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream], unchecked: None
) -> None:
    """It stands still while the join finds nothing, and with it what the join itself forgets by."""
    a, b = short
    timed = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)}, ON, state=State(backend=BACKEND)
    )
    again = timed.withWatermark("a_at", "2 hours")
    refused(
        counts_by_hour(again, "a_at"), tmp_path, "neither watermark would move.*result_time='at'"
    )
    twice = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)},
        ON,
        time=Time(result_time="t"),
        state=State(backend=BACKEND),
    ).withWatermark("a_at", "2 hours")
    refused(counts_by_hour(twice, "a_at"), tmp_path, "'t' has a watermark already; leave it out")


@pytest.mark.stress
def test_a_window_over_a_union_with_an_empty_branch_is_refused(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream], unchecked: None
) -> None:
    """Its watermark is true, but the times of the result may be older: they would be lost."""
    a, b = short
    timed = multiway_join(
        {"a": read(spark, a), "b": read(spark, b)}, ON, state=State(backend=BACKEND)
    )
    empty = read(spark, a).where("at < '1900-01-01'").select("at")
    both = empty.union(timed.select("a_at"))
    refused(counts_by_hour(both, "at"), tmp_path, "never emit a row; give multiway_join a result")


@pytest.mark.stress
def test_spark_refuses_a_window_above_timeouts_unless_told_otherwise(
    spark: Any, tmp_path: Path, short: tuple[FileStream, FileStream]
) -> None:
    a, b = short
    frames = {"a": read(spark, a), "b": read(spark, b)}
    joined = multiway_join(
        frames, ON, time=Time(result_time="latest"), state=State(backend=BACKEND)
    )
    with pytest.raises(AnalysisException, match=CORRECTNESS.replace(".", r"\.")):
        run(counts_by_hour(joined, "latest"), tmp_path)


@pytest.mark.stress
def test_a_chain_of_keys_forgets_through_the_stream_in_between(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(6)
    sources = {}
    for name in "abc":
        found = FileStream(tmp_path / name, f"k INT, j BIGINT, at TIMESTAMP, n{name} BIGINT")
        for hour in range(2):
            rows = table(name, [(rng.randrange(5), hour + rng.random(), n) for n in range(20)])
            keys = pa.array([rng.randrange(4) for _ in range(20)], pa.int64())
            found.add(rows.set_column(0, "k", rows["k"].cast(pa.int32())).add_column(1, "j", keys))
        sources[name] = found
    on = (
        "a.k = b.k AND b.j = c.j AND b.at >= a.at AND b.at <= a.at + INTERVAL 20 MINUTES "
        "AND c.at BETWEEN b.at AND b.at + INTERVAL 40 MINUTES"
    )
    frames = {name: read(spark, source) for name, source in sources.items()}
    joined = multiway_join(frames, on, state=State(backend=BACKEND, memory="8m", buckets=2))
    assert "a: until the watermark is 1:00:00 past at" in explain_join(joined)
    listed = ", ".join(f"{source.sql} {name}" for name, source in sources.items())
    sql = f"SELECT na, nb, nc FROM {listed} WHERE {on}"
    found = run(joined.select("na", "nb", "nc"), tmp_path)
    assert found == by_duckdb(sql)
    if BACKEND != "lsm":
        return
    # Rows of both indexes of b move, those that are due are forgotten, the others still match.
    assert 0 < rescale(str(tmp_path / "checkpoint"), 5).rows < 160
    for minute, (name, source) in enumerate(sources.items()):
        rows = table(name, [(n % 5, 2 + minute / 60, 100 + n) for n in range(20)])
        keys = pa.array([n % 4 for n in range(20)], pa.int64())
        source.add(rows.set_column(0, "k", rows["k"].cast(pa.int32())).add_column(1, "j", keys))
    more = multiway_join(frames, on, state=State(backend=BACKEND, memory="8m", buckets=5))
    again = run(more.select("na", "nb", "nc"), tmp_path)
    assert any(na < 100 <= nb for na, nb, _ in again), "no row that moved was found"
    assert found + again == by_duckdb(sql)
