"""Late rows on Spark: dropped, joined with what is still there, or kept aside."""

import random
from collections import Counter
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from lsmstate.spark import QueryState, State, Time, multiway_join, register, rescale
from support.spark_streams import BACKEND, FileStream, metric
from support.spark_timed_streams import ON, START, by_duckdb, read, run, run_query, stream, table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]


@pytest.mark.stress
def test_late_rows_are_dropped_as_sparks_own_join_does(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(9)
    sources = {}
    for name in "ab":
        files = [
            [
                (rng.choice([0, 1, 2, 3, 9 + hour]), hour + rng.uniform(-2, 1), 100 * hour + n)
                for n in range(25)
            ]
            for hour in range(4)
        ]
        sources[name] = stream(tmp_path, name, *files)
    frames = {name: read(spark, source, "20 minutes") for name, source in sources.items()}
    shown = ["na", "nb"]
    ours, query = run_query(
        multiway_join(frames, ON, state=State(backend=BACKEND, memory="8m", buckets=8)).select(
            *shown
        ),
        tmp_path,
    )
    theirs, native = run_query(
        frames["a"].alias("a").join(frames["b"].alias("b"), F.expr(ON)).select(*shown),
        tmp_path / "native",
    )
    dropped = [
        sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        for progress in native.recentProgress
    ]
    assert ours == theirs
    assert sum(metric(query, "late_rows")) == sum(dropped) > 10


@pytest.mark.stress
def test_late_rows_may_match_what_is_still_there(spark: Any, tmp_path: Path) -> None:
    # Of buckets that had no row before.
    strange = [(key, 1.0, key) for key in range(50, 60)]
    a = stream(tmp_path, "a", [(1, 0.0, 1), (1, 5.0, 2)], [(1, 9.0, 3)], [(9, 10.0, 4), *strange])
    last = [(1, 5.5, 3), (1, 4.8, 4), (1, 0, 5), *strange]
    b = stream(tmp_path, "b", [(1, 5.0, 1)], [(1, 9.0, 2)], last)
    frames = {"a": read(spark, a), "b": read(spark, b)}
    # The watermark was 5:00, so all but the first of the last are late, and what is of 0:00 or
    # 1:00 is forgotten.
    joined = multiway_join(
        frames, ON, time=Time(late="join"), state=State(backend=BACKEND, memory="8m", buckets=8)
    )
    found, query = run_query(joined.select("na", "nb"), tmp_path)
    assert found == Counter([(2, 1), (3, 2), (2, 3), (2, 4)])
    assert sum(metric(query, "late_rows")) == 2 + 2 * len(strange)


@pytest.mark.stress
@pytest.mark.skipif(BACKEND != "lsm", reason="late rows are read from the state of lsm")
def test_late_rows_are_kept_aside_over_restart_and_rescale(spark: Any, tmp_path: Path) -> None:
    """By several keys, so rows have copies. What was joined and what was late is what came."""
    rng = random.Random(8)
    on = f"{ON} AND b.nb = c.nc AND c.at BETWEEN b.at AND b.at + INTERVAL 2 HOURS"
    sources = {name: stream(tmp_path, name) for name in "abc"}
    came: list[tuple[str, int, float, int]] = []

    def arrive(hour: int) -> None:
        for name, source in sources.items():
            rows = [(rng.randrange(6), hour + rng.random(), rng.randrange(9)) for _ in range(14)]
            back = 1 + 3 * rng.random()
            late = [(k, max(0, h - back), n) for k, h, n in rng.sample(rows, 4 * (hour > 0))]
            files = [*rows, *late]
            source.add(table(name, files))
            came.extend((name, *row) for row in files)

    def rows_of(buckets: int, late: str = "side") -> Counter[tuple[Any, ...]]:
        frames = {name: read(spark, source) for name, source in sources.items()}
        joined = multiway_join(
            frames, on, time=Time(late=late), state=State(memory="8m", buckets=buckets)
        )
        times = [F.unix_micros(f"{name}_at") for name in "abc"]
        return run(joined.select("na", "nb", "nc", *times), tmp_path)

    found: Counter[tuple[Any, ...]] = Counter()
    for hours, buckets in (((0, 1, 2), 4), ((3,), 6)):
        for hour in hours:
            arrive(hour)
        if buckets == 6:
            assert rescale(str(tmp_path / "checkpoint"), 6).rows > 0
        found += rows_of(buckets)
    with pytest.raises(
        Exception, match=r"late rows kept = \(a, b, c\), the query now has .*nothing"
    ):
        rows_of(6, "drop")
    late: Counter[tuple[Any, ...]] = Counter()
    in_time: dict[str, list[tuple[int, float, int]]] = {name: [] for name in "abc"}
    state = QueryState.open(str(tmp_path / "checkpoint"))
    for name in "abc":
        kept = state.stream(f"{name} (late)")
        for row in (r for n in state.pointers for p in state.rows(n, kept) for r in p.to_pylist()):
            assert row["at"] <= row["_watermark"] < START + timedelta(hours=row["_batch"])
            late[name, row["k"], row["at"].astimezone(UTC), row[f"n{name}"]] += 1
    register(spark)
    reader = spark.read.format("lsmstate").option("stream", "b (late)")
    shown = reader.load(str(tmp_path / "checkpoint")).select("k", F.unix_micros("at"), "nb")
    assert Counter(map(tuple, shown.collect())) == Counter(
        {(k, round(at.timestamp() * 1e6), n): c for (s, k, at, n), c in late.items() if s == "b"}
    )
    for name, k, hours, n in came:
        row = (name, k, START + timedelta(hours=hours), n)
        if late[row]:
            late[row] -= 1
        else:
            in_time[name].append((k, hours, n))
    assert not +late, "a late row is kept that did not come, or twice"
    assert len(came) - sum(map(len, in_time.values())) > 12
    for name, rows in in_time.items():
        FileStream(tmp_path / f"in_time_{name}", "").add(table(name, rows))
    listed = ", ".join(f"'{tmp_path}/in_time_{name}/*.parquet' {name}" for name in "abc")
    columns = "na, nb, nc, epoch_us(a.at), epoch_us(b.at), epoch_us(c.at)"
    assert found == by_duckdb(f"SELECT {columns} FROM {listed} WHERE {on}")
