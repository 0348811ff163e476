"""Similarity joins on Spark: the pairs of brute force, through restarts."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from lsmstate.spark import State, metrics_of, similarity_join
from support.similar_cases import all_distances
from support.spark_streams import FileStream, run_to_end

SCHEMA = pa.schema([("id", pa.int64()), ("tenant", pa.int32()), ("v", pa.list_(pa.float32()))])
DDL = "id BIGINT, tenant INT, v ARRAY<FLOAT>"


def points(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    """Small whole numbers, so that many rows are equal and many lie at the threshold."""
    vectors = rng.integers(0, 4, (count, 3)).astype(np.float32)
    columns = [range(first, first + count), rng.integers(0, 2, count), list(vectors)]
    return pa.table([list(columns[0]), *columns[1:]], schema=SCHEMA)


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
            source.add(*tables)
            fed[name] += tables
        joined = similarity_join(
            {name: source.read(spark) for name, source in sources.items()},
            "a.v ~ b.v",
            metric="l2",
            threshold=float(np.sqrt(2)),
            by="tenant" if by else (),
            state=State(memory="16m", buckets=4),
        )
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
        for row in rows:
            assert row["distance"] == float(
                np.sqrt(((np.array(row["a_v"]) - np.array(row["b_v"])) ** 2).sum())
            )
