"""S3J and ClusterJoin: all pairs, each once, and as many comparisons as their sets say."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.baselines.cluster_join import ClusterJoin, JavaRandom, random_centroids
from lsmstate.join import Time, similarity_join
from lsmstate.joins.local.similarity.worksets import Bounds, Worksets

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float64()))])


class Euclid:
    """The metric of the plane."""

    def distances(self, points: Any, pivots: Any) -> Any:
        return np.sqrt(((points[:, None] - pivots[None]) ** 2).sum(-1))


def batch(points: Any) -> pa.RecordBatch:
    rows = [{"id": at, "v": list(point)} for at, point in enumerate(points)]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def expected(a: Any, b: Any, threshold: float) -> set[tuple[int, int]]:
    return set(map(tuple, np.argwhere(Euclid().distances(a, b) <= threshold).tolist()))


def test_s3j_compares_what_its_sets_say_and_keeps_copies() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.random((500, 2)), rng.random((400, 2))
    threshold = 0.1
    with similarity_join(
        {"a": SCHEMA, "b": SCHEMA},
        "a.v ~ b.v",
        metric="l2",
        threshold=threshold,
        algorithm="s3j",
    ) as join:
        assert not list(join.process("a", batch(left)))
        rows = list(join.process("b", batch(right)).rows())
        stored = [sum(part.num_rows for part in join.store.scan(name)) for name in ("a", "b")]
        counts = dict(join.counts)
    worksets, bounds = Worksets(Euclid(), 1 << 30), Bounds(threshold / 2, threshold, 2 * threshold)
    placed = [worksets.place(points, bounds, -1) for points in (left, right)]
    sizes = np.zeros((2, 3, worksets.count), np.int64)
    for side, found in enumerate(placed):
        np.add.at(sizes[side], (np.where(found.is_inner, 0, 1), found.homes), 1)
        np.add.at(sizes[side, 2], found.worksets, 1)
    (a, b) = sizes
    compared = sum(x[0] @ (y[1] + y[2]) + x[1] @ y[2] for x, y in ((a, b), (b, a))) + a[1] @ b[1]
    assert counts["compared_pairs"] == compared
    assert counts["certain_pairs"] == a[0] @ b[0] > 0
    assert counts["pivot_distances"] == worksets.compared
    assert stored == [int(sizes[side].sum()) for side in (0, 1)]
    pairs = [(row["a_id"], row["b_id"]) for row in rows]
    assert len(pairs) == counts["close_pairs"] == len(set(pairs))
    assert set(pairs) == expected(left, right, threshold)


@pytest.mark.parametrize("algorithm", ["pivots", "s3j"])
def test_close_pairs_need_no_distance_where_nobody_asks_for_it(algorithm: Any) -> None:
    points = np.random.default_rng(2).integers(0, 40, (1200, 4)) / 10
    found = []
    for chosen in (algorithm, "tiles"):
        with similarity_join(
            {"a": SCHEMA},
            "a.v ~ b.v",
            metric="l2",
            threshold=2.0,
            distance=None,
            algorithm=chosen,
        ) as join:
            pairs: set[Any] = set()
            for first in range(0, 1200, 600):
                rows = list(join.process("a", batch(points[first : first + 600])).rows())
                pairs |= {(row["a_v"].__str__(), row["b_v"].__str__()) for row in rows}
            found.append((join.counts["close_pairs"], pairs))
            certain = join.counts["certain_pairs"]
            assert (certain > 0) == (chosen != "tiles")
    assert found[0] == found[1]


def test_cluster_join_gives_each_pair_once_and_as_published_perhaps_again() -> None:
    rng = np.random.default_rng(3)
    left, right = rng.uniform(-1, 1, (300, 2)), rng.uniform(-1, 1, (200, 2))
    centroids, threshold = random_centroids(60, 2), 0.2
    for as_published in (False, True):
        join = ClusterJoin(centroids, Euclid().distances, threshold, as_published=as_published)
        pairs = list(join.pairs(left, right))
        assert set(pairs) == expected(left, right, threshold)
        if not as_published:
            assert len(pairs) == len(set(pairs))
            compared, copies = join.counts(left, right)
            assert 0 < compared - 500 * 60 < 300 * 200
            assert copies > 500


def test_random_numbers_are_those_of_java() -> None:
    """The first two of ``new Random(42).nextDouble()``."""
    numbers = JavaRandom(42)
    assert [numbers.double() for _ in range(2)] == [0.7275636800328681, 0.6832234717598454]


@pytest.mark.parametrize("algorithm", ["pivots", "s3j"])
def test_pivots_end_with_their_rows(algorithm: Any) -> None:
    """Clusters that are elsewhere in each window."""
    rng = np.random.default_rng(5)
    schema = SCHEMA.append(pa.field("at", pa.timestamp("ms")))
    windows, count = 6, 500
    known, found, every = [], [], []
    with similarity_join(
        {"a": schema},
        "a.v ~ b.v",
        metric="l2",
        threshold=0.3,
        algorithm=algorithm,
        time=Time(event_time={"a": "at"}, window="1 minute"),
    ) as join:
        for window in range(windows):
            centres = rng.uniform(-5, 5, (20, 3)) + 100 * window
            points = centres[rng.integers(0, 20, count)] + 0.05 * rng.standard_normal((count, 3))
            every.append(points)
            rows = [
                {"id": window * count + at, "v": list(point), "at": 60_000 * window + at}
                for at, point in enumerate(points)
            ]
            some = pa.RecordBatch.from_pylist(rows, schema=schema)
            found += [(row["a_id"], row["b_id"]) for row in join.process("a", some).rows()]
            list(join.advance(60_000_000 * window + 59_000_000))
            known.append(join._join._joined._index.count)  # type: ignore[attr-defined]
    assert known[-1] <= 2 * max(known[:2])
    expected_pairs = {
        (int(i) + at * count, int(j) + at * count)
        for at, points in enumerate(every)
        for i, j in np.argwhere(np.triu(Euclid().distances(points, points) <= 0.3, 1))
    }
    assert len(found) == len(set(found))
    assert set(found) == expected_pairs
