"""Similarity joins and their answers by brute force: every pair, in NumPy."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Matrix = npt.NDArray[Any]
RADIUS = 6371008.8


def all_distances(metric: str, a: Matrix, b: Matrix) -> Matrix:
    """The distance of each row of ``a`` from each of ``b``."""
    x, y = a.astype(np.float64)[:, None], b.astype(np.float64)[None]
    if metric == "l2":
        return np.sqrt(((x - y) ** 2).sum(-1))
    if metric == "manhattan":
        return np.abs(x - y).sum(-1)
    if metric == "chebyshev":
        return np.abs(x - y).max(-1)
    if metric == "hamming":
        return (x != y).sum(-1).astype(np.float64)
    if metric == "haversine":
        one, two = np.radians(x), np.radians(y)
        up, along = (two - one)[..., 1] / 2, (two - one)[..., 0] / 2
        part = np.sin(up) ** 2 + np.cos(one[..., 1]) * np.cos(two[..., 1]) * np.sin(along) ** 2
        return 2 * RADIUS * np.arcsin(np.sqrt(np.clip(part, 0, 1)))
    norms = (x * x).sum(-1) * (y * y).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.clip((x * y).sum(-1) / np.sqrt(norms), -1, 1)
    return 1 - cosine if metric == "cosine" else np.arccos(cosine) / np.pi


def vectors(rng: np.random.Generator, metric: str, count: int, width: int) -> Matrix:
    """Vectors with ties: small whole numbers, so that sums are exact whatever their order."""
    if metric == "haversine":
        near = rng.uniform(-3, 3, (count, 2)) + np.array([179, 0])
        far = rng.uniform(-90, 90, (count, 2)) * np.array([2, 1])
        found = np.where(rng.random((count, 1)) < 0.7, near, far)
        return found.astype(np.float32).astype(np.float64)
    return rng.integers(-3, 4, (count, width)).astype(np.float64)


def threshold_of(metric: str, distances: Matrix, part: float) -> float:
    """A threshold that about this part of the pairs keeps: the distance of a pair where distances
    are exact, between two distances where they are not."""
    known = np.unique(distances[np.isfinite(distances)])
    if not len(known):
        return 1.0
    at = min(len(known) - 1, int(np.quantile(np.arange(len(known)), part)))
    if metric not in ("angular", "haversine"):
        return float(known[at])
    gaps = np.flatnonzero(np.diff(known) > 1e-9 * max(1.0, float(known[-1])))
    if not len(gaps):
        return float(known[-1]) * 2 + 1
    gap = gaps[np.searchsorted(gaps, at) % len(gaps)]
    return float(known[gap] + known[gap + 1]) / 2


@dataclass(frozen=True)
class SimilarCase:
    """Rows of one or two streams. Some vectors can match nothing."""

    metric: str
    width: int
    schema: pa.Schema
    rows: dict[str, list[dict[str, Any]]]
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, metric: str, width: int, *, streams: int, kind: pa.DataType) -> Any:
        """A case from a seed."""
        rng = np.random.default_rng(seed)
        count = 60
        schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", kind)])
        rows = {
            name: [
                {"id": i, "k": int(rng.integers(3)), "v": list(map(float, vector))}
                for i, vector in enumerate(vectors(rng, metric, count, width))
            ]
            for name in ("a", "b")[:streams]
        }
        for some in rows.values():
            some[5]["v"] = None
            some[7]["v"][0] = math.nan
            some[9]["v"][-1] = math.inf
            some[11]["k"] = None
            some[13]["v"] = [0.0] * width
        return cls(metric, width, schema, rows)

    def matrix(self, stream: str) -> Matrix:
        """Its vectors; where there is none, of NaN."""
        lost = [math.nan] * self.width
        return np.array([row["v"] or lost for row in self.rows[stream]])

    def usable(self, stream: str) -> Matrix:
        """Which rows can match."""
        found = np.isfinite(self.matrix(stream)).all(axis=1)
        if self.metric in ("cosine", "angular"):
            found &= (self.matrix(stream) != 0).any(axis=1)
        return found

    def distances(self) -> Matrix:
        """Of all pairs; infinite where one can match nothing."""
        first, last = min(self.rows), max(self.rows)
        with np.errstate(invalid="ignore"):
            found = all_distances(self.metric, self.matrix(first), self.matrix(last))
        found[~self.usable(first)] = np.inf
        found[:, ~self.usable(last)] = np.inf
        return found

    def expected(self, threshold: float, by: bool) -> dict[tuple[int, int], float]:
        """Close pairs, of one stream each once."""
        first, last = min(self.rows), max(self.rows)
        found = {}
        for i, j in np.argwhere(self.distances() <= threshold):
            one, two = self.rows[first][i]["k"], self.rows[last][j]["k"]
            if by and (one is None or one != two):
                continue
            if first != last or i < j:
                found[int(i), int(j)] = float(self.distances()[i, j])
        return found


def parts(case: SimilarCase, rng: random.Random) -> Iterator[tuple[str, pa.RecordBatch]]:
    """All rows, the streams in turns, in batches of random sizes."""
    waiting = {name: list(rows) for name, rows in case.rows.items()}
    while waiting:
        name = rng.choice(sorted(waiting))
        count = rng.choice([0, 1, 7, 40])
        some, waiting[name] = waiting[name][:count], waiting[name][count:]
        yield name, pa.RecordBatch.from_pylist(some, schema=case.schema)
        if not waiting[name]:
            del waiting[name]
