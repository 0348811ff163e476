"""Joins in time, and those that take results back, on Spark: a restart after every micro-batch, and
a stream that says nothing. Slow, so they run in ``make stress``."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import multiway_join
from support.grouped import grouped
from support.spark_streams import BACKEND, FileStream
from support.spark_timed_streams import POLICY, by_duckdb, read, run_query, stream, table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.stress,
    pytest.mark.usefixtures("few_partitions"),
]

NEAR = "BETWEEN a.at - INTERVAL 30 MINUTES AND a.at + INTERVAL 1 HOUR"
INNER = f"a.k = b.k AND b.k = c.k AND b.at {NEAR} AND c.at {NEAR}"
OUTER = f"a FULL JOIN b ON a.k = b.k AND b.at {NEAR} LEFT JOIN c ON a.k = c.k AND c.at {NEAR}"
#: Condition and options.
JOINS: dict[str, tuple[str, dict[str, Any]]] = {
    "timed": (INNER, {}),
    "final": (OUTER, {"emit": "final"}),
    "changes in time": (OUTER, {"emit": "changes"}),
    "changes": (
        "a FULL JOIN b ON a.k = b.k LEFT JOIN c ON a.k = c.k",
        {"emit": "changes"},
    ),
}
#: Rows of this number only move the watermark on.
CLOCK = -1
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"

Pairs = Counter[tuple[Any, ...]]


@pytest.fixture
def only_data_batches(spark: Any) -> Iterator[None]:
    """A run over one new file of each stream is one micro-batch."""
    spark.conf.set(NO_DATA_BATCHES, "false")
    yield
    spark.conf.unset(NO_DATA_BATCHES)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, FileStream]:
    return {name: stream(tmp_path, name).add() for name in "abc"}


def hour_of(rng: random.Random, name: str, hour: int, rows: int) -> Any:
    found = [(rng.randrange(9), hour + rng.random(), 100 * hour + n) for n in range(rows)]
    return table(name, found)


def clock(name: str, hour: float) -> Any:
    return table(name, [(1000 + ord(name), hour, CLOCK)])


class Query:
    """A query that is started anew for whatever has arrived; what stands of its result."""

    def __init__(self, spark: Any, sources: dict[str, FileStream], home: Path, join: str) -> None:
        self._spark, self._sources, self._home = spark, sources, home
        self._condition, self._options = JOINS[join]
        self.standing: Pairs = Counter()

    def run(self) -> int:
        """How many micro-batches it took."""
        frames = {name: read(self._spark, source) for name, source in self._sources.items()}
        joined = multiway_join(
            frames,
            self._condition,
            **grouped(backend=BACKEND, memory="8m", buckets=3, **self._options),
        )
        has_op = "op" in joined.columns
        shown = joined.select(*(["op"] if has_op else []), "na", "nb", "nc")
        rows, query = run_query(shown, self._home)
        for row, count in rows.items():
            numbers = row[1:] if has_op else row
            self.standing[numbers] += -count if row[0] == "-D" else count
        assert min(self.standing.values(), default=0) >= 0
        return len({progress["batchId"] for progress in query.recentProgress})

    @property
    def rows(self) -> Pairs:
        """What stands, but for the clock's rows."""
        return Counter({row: n for row, n in self.standing.items() if n and CLOCK not in row})

    def expected(self) -> Pairs:
        views = []
        for name, source in self._sources.items():
            rows = f"SELECT 0 AS k, now() AS at, 0 AS n{name} WHERE false"
            if source.files:
                rows = f"SELECT * FROM {source.sql} WHERE n{name} <> {CLOCK}"
            views.append(f"{name} AS ({rows})")
        joins = " JOIN " in self._condition
        rows = f"FROM {self._condition}" if joins else f"FROM a, b, c WHERE {self._condition}"
        return by_duckdb(f"WITH {', '.join(views)} SELECT na, nb, nc {rows}")


@pytest.mark.parametrize(
    ("join", "hours"),
    [
        ("final", 1),
        *((join, 8) for join in JOINS),
    ],
)
def test_a_restart_after_every_micro_batch(
    spark: Any,
    tmp_path: Path,
    sources: dict[str, FileStream],
    only_data_batches: None,
    join: str,
    hours: int,
) -> None:
    rng = random.Random(hours)
    query = Query(spark, sources, tmp_path, join)
    # At the end time goes on in two micro-batches: rows leave by the watermark of the one before.
    for hour in range(hours + 2):
        for name, source in sources.items():
            is_over = hour >= hours
            source.add(clock(name, 30 * hour) if is_over else hour_of(rng, name, hour, 12))
        assert query.run() == 1
    assert query.rows == query.expected()
    assert query.rows.total() > 8 * hours


def without_c(spark: Any, sources: dict[str, FileStream], home: Path, join: str) -> Query:
    """A query whose stream ``c`` has not said anything, long after the others."""
    rng = random.Random(3)
    for name in "ab":
        sources[name].add(hour_of(rng, name, 0, 12), hour_of(rng, name, 1, 12), clock(name, 50))
    return Query(spark, sources, home, join)


@pytest.mark.parametrize("join", ["timed", "final"])
def test_what_awaits_a_silent_stream_is_there_when_it_speaks(
    spark: Any, tmp_path: Path, sources: dict[str, FileStream], join: str
) -> None:
    """Its watermark is that of the query, so nothing is final, forgotten or late."""
    query = without_c(spark, sources, tmp_path, join)
    query.run()
    assert not query.standing
    rng = random.Random(4)
    sources["c"].add(*(hour_of(rng, "c", hour, 12) for hour in (1, 0)))
    query.run()
    for name, source in sources.items():
        source.add(clock(name, 60))
    query.run()
    assert query.rows == query.expected()
    assert any(None not in row for row in query.rows)


@pytest.mark.parametrize("join", ["final", "changes in time"])
def test_a_stream_that_never_speaks_stops_nobody_under_the_watermark_of_the_fastest(
    spark: Any, tmp_path: Path, sources: dict[str, FileStream], join: str
) -> None:
    query = without_c(spark, sources, tmp_path, join)
    spark.conf.set(POLICY, "max")
    try:
        query.run()
    finally:
        spark.conf.unset(POLICY)
    assert query.rows == query.expected()
    assert {row[2] for row in query.rows} == {None}
    assert len({(row[0] is None, row[1] is None) for row in query.rows}) == 3
