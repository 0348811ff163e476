"""Similarity joins on Spark: the pairs of brute force, through restarts."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from lsmstate.errors import InvalidArgumentError
from lsmstate.spark import (
    QueryState,
    Skew,
    State,
    explain_join,
    metrics_of,
    similarity_join,
)
from support.similar_cases import all_distances
from support.spark_streams import FileStream, run_to_end

SCHEMA = pa.schema([("id", pa.int64()), ("tenant", pa.int32()), ("v", pa.list_(pa.float32()))])
DDL = "id BIGINT, tenant INT, v ARRAY<FLOAT>"


def points(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    """Small whole numbers, so that many rows are equal and many lie at the threshold."""
    vectors = rng.integers(0, 4, (count, 3)).astype(np.float32)
    columns = [range(first, first + count), rng.integers(0, 2, count), list(vectors)]
    return pa.table([list(columns[0]), *columns[1:]], schema=SCHEMA)


def malformed(first: int) -> pa.Table:
    """One vector of another dimension, and one with a null."""
    columns = [[first, first + 1], [0, 1], [[1, 2], [1, None, 2]]]
    return pa.table(columns, schema=SCHEMA)


def expected(a: pa.Table, b: pa.Table | None, *, by: bool) -> set[tuple[int, int]]:
    tables = [a, a if b is None else b]
    values = [np.array(t["v"].to_pylist(), np.float64) for t in tables]
    ids = [t["id"].to_numpy() for t in tables]
    close = all_distances("l2", *values) <= np.sqrt(2)
    if by:
        close &= tables[0]["tenant"].to_numpy()[:, None] == tables[1]["tenant"].to_numpy()
    found = {(int(ids[0][i]), int(ids[1][j])) for i, j in np.argwhere(close)}
    return {(i, j) for i, j in found if i < j} if b is None else found


@pytest.mark.spark
@pytest.mark.parametrize("streams", [pytest.param(1, marks=pytest.mark.stress), 2])
def test_pairs_are_those_of_brute_force_through_a_restart(
    spark: Any, tmp_path: Path, streams: int
) -> None:
    rng = np.random.default_rng(streams)
    by = streams == 2
    names = ["a", "b"][:streams]
    sources = {name: FileStream(tmp_path / name, DDL) for name in names}
    fed: dict[str, list[pa.Table]] = {name: [] for name in names}
    for start in range(2):  # the second one is a restart
        for name, source in sources.items():
            tables = [points(rng, 1000 * start + 100 * k, 40) for k in range(2)]
            bad = malformed(10_000 * (start + 1))
            source.add(pa.concat_tables([bad, tables[0]]), *tables[1:])
            fed[name] += tables
        joined = similarity_join(
            {name: source.read(spark) for name, source in sources.items()},
            "a.v ~ b.v",
            metric="l2",
            threshold=float(np.sqrt(2)),
            by="tenant" if by else (),
            dimension=3,
            malformed="side",
            columns=["A_id", "b_id", "distance"] if start else None,
            state=State(memory="16m", buckets=4),
        )
        assert len(joined.columns) == (3 if start else 7)
        query = run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
        metrics = metrics_of(query.lastProgress)
        assert metrics is not None
        assert metrics.counts["close_pairs"] == metrics.rows_out
        rows = pq.read_table(tmp_path / "out").to_pylist()
        found = [(row["a_id"], row["b_id"]) for row in rows]
        tables = [pa.concat_tables(fed[name]) for name in names]
        other = tables[1] if streams == 2 else None
        if streams == 1:
            found = [(min(pair), max(pair)) for pair in found]
        assert len(set(found)) == len(found)
        assert set(found) == expected(tables[0], other, by=by)
        vectors = [
            {row["id"]: np.array(row["v"]) for row in table.to_pylist() if None not in row["v"]}
            for table in (tables[0], tables[-1])
        ]
        for row in rows:
            ids = (row["a_id"], row["b_id"])
            a, b = (known[at] for known, at in zip(vectors, ids, strict=True))
            assert row["distance"] == float(np.sqrt(((a - b) ** 2).sum()))
            if row.get("a_v") is not None:  # of the first start
                assert (row["a_v"], row["b_v"]) == (a.tolist(), b.tolist())
        state = QueryState.open(str(tmp_path / "checkpoint"))
        for name in names:
            aside = state.stream(f"{name} (malformed)")
            kept = [r for n in state.pointers for p in state.rows(n, aside) for r in p.to_pylist()]
            wanted = [10_000 * k + at for k in range(1, start + 2) for at in (0, 1)]
            assert sorted(row["id"] for row in kept) == wanted
    with pytest.raises(InvalidArgumentError, match="say which one counts, as in dimension=384"):
        similarity_join(
            {name: source.read(spark) for name, source in sources.items()},
            "a.v ~ b.v", metric="l2", threshold=1, malformed="skip",
        )  # fmt: skip


@pytest.mark.spark
@pytest.mark.stress
@pytest.mark.parametrize("streams", [1, 2])
def test_worksets_follow_rows_that_move_and_lose_no_pair(
    spark: Any, tmp_path: Path, streams: int
) -> None:
    """Tables change every four micro-batches; the second start is a restart."""
    rng = np.random.default_rng(streams)
    names = ["a", "b"][:streams]
    sources = {name: FileStream(tmp_path / name, DDL) for name in names}
    fed: dict[str, list[pa.Table]] = {name: [] for name in names}
    for start in range(2):
        for at, (name, source) in enumerate(sources.items()):
            tables = []
            for k in range(7):
                first = 100_000 * at + 10_000 * start + 100 * k
                table = points(rng, first, 60)
                # Far apart as seen from the threshold; after the restart where others were.
                moved = 8 * np.stack(table["v"].to_numpy(zero_copy_only=False))
                moved = (moved + 16 * k).astype(np.float32)
                tables.append(table.set_column(2, "v", pa.array(list(moved), SCHEMA.field(2).type)))
            source.add(*tables)
            fed[name] += tables
        joined = similarity_join(
            {name: source.read(spark) for name, source in sources.items()},
            "a.v ~ b.v",
            metric="l2",
            threshold=float(np.sqrt(2)),
            skew=Skew(routing="worksets"),
            state=State(memory="16m", buckets=4),
        )
        run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out").to_pylist()
    found = [(row["a_id"], row["b_id"]) for row in rows]
    tables = [pa.concat_tables(fed[name]) for name in names]
    if streams == 1:
        found = [(min(pair), max(pair)) for pair in found]
    assert len(set(found)) == len(found)
    assert set(found) == expected(tables[0], tables[1] if streams == 2 else None, by=False)


@pytest.mark.spark
@pytest.mark.stress
@pytest.mark.parametrize(
    ("condition", "is_index"),
    [
        ("a.tenant = b.tenant AND l2_distance(a.v, b.v) <= 1.5 AND a.id <> b.id - 1", True),
        ("chebyshev_distance(a.v, b.v) < 1.5 AND a.tenant <> b.tenant", True),
        ("vector_l2_distance(a.v, b.v) <= 1.5 AND a.tenant = b.tenant", True),
        ("vector_cosine_similarity(a.v, b.v) > 0.99 AND a.tenant = b.tenant", True),
        ("a.tenant = b.tenant AND (manhattan_distance(a.v, b.v) <= 1 OR a.id = b.id)", False),
        ("a.id < b.id AND (l2_distance(a.v, b.v) <= 1 OR FALSE)", False),
    ],
)
def test_distances_are_conditions(
    spark: Any, tmp_path: Path, condition: str, is_index: bool
) -> None:
    from lsmstate.spark import multiway_join

    called = condition.partition("(")[0]
    if called.startswith("vector_") and not spark.catalog.functionExists(called):
        pytest.skip(f"this release of Spark has no {called}")
    rng = np.random.default_rng(3)
    sources, fed = {}, {}
    for at, name in enumerate(("a", "b")):
        sources[name] = FileStream(tmp_path / name, DDL)
        fed[name] = points(rng, 1000 * at, 60)
        sources[name].add(fed[name])
    joined = multiway_join(
        {name: source.read(spark) for name, source in sources.items()},
        condition,
        state=State(memory="16m", buckets=2),
    )
    assert ("pairs with" in str(explain_join(joined))) == is_index
    run_to_end(joined, tmp_path / "checkpoint", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out").to_pylist()
    found = {(row["a_id"], row["b_id"]) for row in rows}
    assert len(found) == len(rows)
    a, b = (np.array(fed[name]["v"].to_pylist()) for name in ("a", "b"))
    ids = [fed[name]["id"].to_numpy() for name in ("a", "b")]
    tenants = [fed[name]["tenant"].to_numpy() for name in ("a", "b")]
    same = tenants[0][:, None] == tenants[1]
    apart = all_distances("l2", a, b)
    if condition.startswith("a.tenant = b.tenant AND l2"):
        close = same & (apart <= 1.5) & (ids[0][:, None] != ids[1] - 1)
    elif "chebyshev" in condition:
        close = ~same & (all_distances("chebyshev", a, b) < 1.5)
    elif "vector_l2" in condition:
        close = same & (apart <= 1.5)
    elif "cosine" in condition:
        close = same & (1 - all_distances("cosine", a, b) > 0.99)
        close[np.isnan(all_distances("cosine", a, b))] = False
    elif "manhattan" in condition:
        close = same & (all_distances("manhattan", a, b) <= 1)
    else:
        close = apart <= 1
    expected_ids = {(int(ids[0][i]), int(ids[1][j])) for i, j in np.argwhere(close)}
    assert found == expected_ids
    assert found


@pytest.mark.spark
@pytest.mark.stress
def test_vectors_of_spark_ml_come_in_and_out(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.linalg import Vector

    source = FileStream(tmp_path / "a", DDL)
    table = points(np.random.default_rng(4), 0, 40)
    source.add(table)
    frame = source.read(spark).withColumn("v", array_to_vector("v"))
    joined = similarity_join(
        {"a": frame},
        "a.v ~ b.v",
        metric="l2",
        threshold=float(np.sqrt(2)),
        state=State(memory="16m", buckets=2),
    )
    query = joined.writeStream.format("memory").queryName("ml_pairs").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    rows = spark.table("ml_pairs").collect()
    found = {tuple(sorted((row["a_id"], row["b_id"]))) for row in rows}
    assert found == expected(table, None, by=False)
    assert all(isinstance(row["a_v"], Vector) for row in rows)
