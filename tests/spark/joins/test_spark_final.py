"""Outer, semi and anti joins in time on Spark: that wait for the watermark, and that do not."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import QueryState, explain_join, multiway_join
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream, collected, metric
from support.spark_timed_streams import by_duckdb, hourly, read, run_query, stream, table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_partitions")]

AHEAD = "BETWEEN a.at - INTERVAL 30 MINUTES AND a.at + INTERVAL 1 HOUR"
OPTIONS: dict[str, Any] = {"emit": "final", "backend": BACKEND, "memory": "8m", "buckets": 3}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, FileStream]:
    """Rows of three hours; and of a day later, so that the watermark passes them."""
    found = {}
    for seed, name in enumerate("abc"):
        source = hourly(tmp_path, name, 0, 3, seed)
        found[name] = source.add(table(name, [(100 + seed, 30.0, 0)]), table(name, [(200, 60, 0)]))
    return found


def all_final(sql: str, time: str) -> Counter[tuple[Any, ...]]:
    """What DuckDB finds; of rows as young as the last watermark, those with all partners."""
    young = f"{time} >= TIMESTAMPTZ '2026-03-29 12:00:00+00'"
    return by_duckdb(f"{sql} WHERE {time} IS NULL OR NOT {young} OR na + nb + nc = 0")


def test_a_full_and_a_left_join_equal_duckdbs_over_restarts(
    spark: Any, tmp_path: Path, sources: dict[str, FileStream]
) -> None:
    """By two keys: c is compared by its number, and copied to all buckets. With conditions beside
    the keys, by which rows with equal keys have no partner."""
    text = (
        f"a FULL JOIN b ON a.k = b.k AND b.at {AHEAD} AND (a.na < b.nb OR b.nb IN (3, 105)) "
        f"LEFT JOIN c ON c.nc = a.na AND c.at {AHEAD} AND NOT c.k = 7"
    )
    found: Counter[tuple[Any, ...]] = Counter()
    later = {name: sorted(s.directory.glob("*.parquet"))[2:] for name, s in sources.items()}
    for files in later.values():
        for path in files:
            path.rename(path.with_name(f"_{path.name}"))  # Spark reads no such file
    for _ in range(2):
        frames = {name: read(spark, source) for name, source in sources.items()}
        joined = multiway_join(frames, text, **grouped(**OPTIONS))
        assert "rows without a partner wait (a: until the watermark is 1:00:00" in explain_join(
            joined
        )
        found += Counter(map(tuple, collected(joined.select("na", "nb", "nc"), tmp_path)))
        for path in (path for files in later.values() for path in files if not path.exists()):
            path.with_name(f"_{path.name}").rename(path)
    on = text
    for name, source in sources.items():
        on = on.replace(f"{name} FULL", f"{source.sql} {name} FULL")
        on = on.replace(f"JOIN {name} ON", f"JOIN {source.sql} {name} ON")
    expected = all_final(f"SELECT na, nb, nc FROM {on}", "greatest(a.at, b.at)")
    assert found == expected
    assert sum(n for row, n in found.items() if None in row) > 50


@pytest.mark.stress
def test_a_from_clause_in_windows_equals_duckdbs(
    spark: Any, tmp_path: Path, sources: dict[str, FileStream]
) -> None:
    """A row of c is in one window with a, and with b where that has a row."""

    def near(one: str, other: str) -> str:
        ends = f"epoch({one}.at), epoch({other}.at)"
        known = f"{one}.at IS NOT NULL AND {other}.at IS NOT NULL"
        return f"({known} AND greatest({ends}) < floor(least({ends}) / 1800) * 1800 + 3600)"

    frames = {name: read(spark, source) for name, source in sources.items()}
    clause = "a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k"
    windows = grouped(window=("1 hour", "30 minutes"), **OPTIONS)
    joined = multiway_join(frames, clause, **windows)
    found = Counter(map(tuple, collected(joined.select("na", "nb", "nc"), tmp_path)))
    a, b, c = (f"{source.sql} {name}" for name, source in sources.items())
    asked = (
        f"{a} LEFT JOIN {b} ON a.k = b.k AND {near('a', 'b')} LEFT JOIN {c} ON a.k = c.k "
        f"AND {near('a', 'c')} AND (b.at IS NULL OR {near('b', 'c')})"
    )
    assert found == all_final(f"SELECT na, nb, nc FROM {asked}", "a.at")
    assert any(row[1] is None and row[2] is not None for row in found)


@pytest.mark.stress
@pytest.mark.parametrize("how", ["left_outer", "right_outer", "full_outer", "left_semi"])
def test_two_streams_equal_sparks_own_join(
    spark: Any, tmp_path: Path, sources: dict[str, FileStream], how: str
) -> None:
    """With late rows, which both leave out. Rows without a time, which Spark keeps for ever, and
    without a key, which its full join matches, are compared with DuckDB's above."""
    for name, source in sources.items():
        source.add(table(name, [(3, 1.5, 77)]))
    frames = {
        name: read(spark, sources[name], "20 minutes").where("k IS NOT NULL AND at IS NOT NULL")
        for name in "ab"
    }
    on = f"a.k = b.k AND b.at {AHEAD}"
    shown = ["na"] if how == "left_semi" else ["na", "nb"]
    ours, query = run_query(
        multiway_join(frames, on, **grouped(how=how, **OPTIONS)).select(*shown), tmp_path
    )
    theirs, _ = run_query(
        frames["a"].alias("a").join(frames["b"].alias("b"), F.expr(on), how).select(*shown),
        tmp_path / "native",
    )
    if how == "left_semi":
        ours[(0,)] += 1  # the youngest row, which Spark gives before its time is over
    assert ours == theirs
    assert sum(metric(query, "late_rows")) == 2


@pytest.mark.stress
def test_a_changelog_in_a_full_join_forgets_and_takes_nothing_back_for_it(
    spark: Any, tmp_path: Path
) -> None:
    """Emitted at once and taken back when a partner comes or goes; over a restart."""
    rng = random.Random(5)
    a = FileStream(tmp_path / "a", "k BIGINT, at TIMESTAMP, na BIGINT")
    b = FileStream(tmp_path / "b", "op STRING, k BIGINT, at TIMESTAMP, nb BIGINT")
    live: list[tuple[int | None, float | None, int]] = []
    standing: Counter[tuple[Any, ...]] = Counter()
    for hour in range(5):
        a.add(table("a", [(rng.randrange(9), hour + rng.random(), 9 * hour + n) for n in range(9)]))
        gone = rng.sample([row for row in live if row[1] > hour - 1], 6 if hour else 0)
        come = [(rng.randrange(9), hour + rng.random(), 20 * hour + n) for n in range(20)]
        live = [row for row in [*live, *come] if row not in gone]
        late = live[:1] if hour == 4 else []  # of the first hour: left out, so it lives on
        changes = table("b", [*come, *gone, *late])
        signs = ["+I"] * len(come) + ["-D"] * len([*gone, *late])
        b.add(changes.add_column(0, "op", pa.array(signs)))
        if hour in (2, 4):
            frames = {"a": read(spark, a, "1 hour"), "b": read(spark, b, "1 hour")}
            joined = multiway_join(
                frames,
                "a FULL JOIN b ON a.k = b.k AND b.at " + AHEAD,
                **grouped(
                    **{**OPTIONS, "emit": "changes", "changes": {"b": "op"}, "unmatched": "error"},
                    late="side" if BACKEND == "lsm" else "drop",
                ),
            )
            assert "rows are kept (a: until the watermark is 1:" in explain_join(joined)
            rows, query = run_query(joined.select("op", "na", "nb"), tmp_path)
            for (operation, *numbers), count in rows.items():
                standing[tuple(numbers)] += count if operation == "+I" else -count
            assert min(standing.values()) >= 0
    assert sum(metric(query, "late_rows")) == 1
    if BACKEND == "lsm":
        state = QueryState.open(str(tmp_path / "checkpoint"))
        kept = state.stream("b (late)")
        (row,) = (row for n in state.pointers for p in state.rows(n, kept) for row in p.to_pylist())
        assert (row["op"], row["nb"], row["_batch"]) == ("-D", late[0][2], state.batch - 1)
    FileStream(tmp_path / "live", "").add(table("b", live))
    sql = f"{a.sql} a FULL JOIN '{tmp_path}/live/*.parquet' b ON a.k = b.k AND b.at {AHEAD}"
    assert +standing == by_duckdb(f"SELECT na, nb FROM {sql}")
    assert len({(row[0] is None, row[1] is None) for row in +standing}) == 3


@pytest.mark.stress
def test_a_changelog_in_time_with_a_condition_beside(spark: Any, tmp_path: Path) -> None:
    """The interval forgets, the condition filters what comes and what goes."""
    near = AHEAD.replace("- INTERVAL 30", "+ INTERVAL 5")
    on = f"a.k = b.k AND b.at {near} AND (a.na + b.nb) % 3 > 0"
    a = hourly(tmp_path, "a", 0, 2, 1)
    b = FileStream(tmp_path / "b", "op STRING, k BIGINT, at TIMESTAMP, nb BIGINT")
    rng = random.Random(7)
    rows = [(rng.randrange(12), 2 * rng.random(), n) for n in range(60)]
    for signs, part in ((["+I"] * 60, rows), (["-D"] * 20, rows[:40:2])):
        b.add(table("b", part).add_column(0, "op", pa.array(signs)))
    frames = {"a": read(spark, a, "2 hours"), "b": read(spark, b, "2 hours")}
    options = OPTIONS | {"emit": "changes", "changes": {"b": "op"}, "unmatched": "error"}
    joined = multiway_join(frames, on, **grouped(**options))
    assert "b: until the watermark is" in explain_join(joined)
    standing: Counter[tuple[Any, ...]] = Counter()
    for operation, *numbers in collected(joined.select("op", "na", "nb"), tmp_path):
        standing[tuple(numbers)] += 1 if operation == "+I" else -1
    FileStream(tmp_path / "live", "").add(table("b", [*rows[1:40:2], *rows[40:]]))
    sql = f"SELECT na, nb FROM {a.sql} a JOIN '{tmp_path}/live/*.parquet' b ON {on}"
    assert +standing == by_duckdb(sql)
    # By another interval results would go that never came, though rows are kept as long.
    other = multiway_join(frames, on.replace("5 MINUTES", "6 MINUTES"), **grouped(**options))
    kept = [explain_join(each).partition("rows are kept")[2] for each in (joined, other)]
    assert kept[0] == kept[1]
    with pytest.raises(Exception, match=r"started with intervals = .*5 MINUTES.* now has"):
        collected(other.select("op", "na", "nb"), tmp_path)


def test_what_does_not_fit_is_refused(spark: Any, tmp_path: Path) -> None:
    a, b = stream(tmp_path, "a", [(1, 0, 0)]), stream(tmp_path, "b", [(1, 0, 0)])
    frames = {"a": read(spark, a), "b": read(spark, b)}
    on = f"a LEFT JOIN b ON a.k = b.k AND b.at {AHEAD}"
    for options, words in (
        ({"result_time": "t"}, "would be late above"),
        ({"result_time": "t", "emit": "changes"}, "may be retracted .* leave it out"),
        ({"late": "join"}, "rows that come late cannot be joined"),
        ({"retention": {"a": "1 day"}}, "write it there"),
        ({"on": on.replace("1 HOUR", "1 DAY")}, "may have 23 or 25 hours"),
        ({"on": "a LEFT JOIN b ON a.k = b.k"}, "would wait for ever for 'b'"),
        ({"streams": {**frames, "b": b.read(spark)}}, "'b' has no event time"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            multiway_join(**grouped(**{"streams": frames, "on": on, **OPTIONS, **options}))
