"""Comparisons and copies of similarity joins, counted: Tables 2 and 3 of the paper on S3J.

    python -m bench.joins.similarity_counts

Two streams of points, uniform in a square, under the angular distance, in one window of 60 seconds.
A ratio is the comparisons by the results that are to be expected: the threshold times the pairs.

S3J and ClusterJoin are counted for the whole window: S3J by the worksets of the product, in the
paper's space partitions. ``pivots`` is the product. Its comparisons are those of a sample of one
stream with all of the other, and its copies are the rows that it stores.
"""

import argparse
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.baselines.cluster_join import ClusterJoin, Matrix, partitions, random_centroids
from lsmstate.joins.kinds import local_join
from lsmstate.joins.local.similarity.worksets import Bounds, Worksets
from lsmstate.joins.protocols import Batch, Context, Role
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.opening import open_store
from lsmstate.options import Options

SECONDS = 60
SEED = 0
_BLOCK = 4096
#: Rows of one stream that look for partners in all of the other.
_SAMPLE = 1000


class Cell(NamedTuple):
    """A cell of a table: a threshold, records a second of each stream, and partitions."""

    table: str
    threshold: float
    rate: int
    partitions: int


#: Cells, and what they are by the count of a prototype: S3J, ClusterJoin with all its keys, and as
#: published; None where the paper's did not end.
CELLS: dict[Cell, tuple[float, float | None, float | None]] = {
    Cell("2", 0.1, 2000, 5): (1.59, None, None),
    Cell("2", 0.05, 2000, 5): (1.65, None, None),
    Cell("2", 0.01, 2000, 5): (1.76, 3.15, 9.72),
    Cell("2", 0.005, 2000, 5): (1.95, 4.16, 11.17),
    Cell("2", 0.001, 2000, 5): (7.22, 13.03, 24.59),
    Cell("3", 0.001, 4000, 5): (4.47, 8.85, 20.40),
    Cell("3", 0.001, 4000, 10): (3.15, 8.85, 20.40),
    Cell("3", 0.001, 4000, 15): (2.92, 8.85, 20.40),
    Cell("3", 0.001, 4000, 20): (2.65, 8.85, 20.40),
}


def angles(points: Matrix, others: Matrix) -> Matrix:
    """The angle between each two, over pi."""
    one = points / np.linalg.norm(points, axis=1, keepdims=True)
    two = others / np.linalg.norm(others, axis=1, keepdims=True)
    found: Matrix = np.arccos(np.clip(one @ two.T, -1, 1)) / np.pi
    return found


class Angles:
    """The metric for the worksets."""

    def distances(self, points: Matrix, pivots: Matrix) -> Matrix:
        """As ``angles``."""
        return angles(points, pivots)


def window(cell: Cell) -> tuple[Matrix, Matrix]:
    """The records of both streams in one window, in the order they come."""
    rng = np.random.default_rng(SEED)
    count = cell.rate * SECONDS
    found = rng.uniform(-1, 1, (2 * count, 2))
    return found[::2], found[1::2]


def s3j(cell: Cell, left: Matrix, right: Matrix) -> tuple[int, int]:
    """Comparisons of S3J, with those to centroids, and copies of records that are stored."""
    points = np.stack([left, right], axis=1).reshape(-1, left.shape[1])
    is_right = np.arange(len(points)) % 2
    t = cell.threshold
    centroids = random_centroids(cell.partitions, left.shape[1])
    inner, rows, outer = partitions(points, centroids, angles, t)
    compared, copies = len(points) * cell.partitions, 0
    for partition in range(cell.partitions):
        worksets = Worksets(Angles(), 1 << 30)
        bounds = Bounds(t / 2, t, 2 * t)
        mine = np.flatnonzero(inner == partition)
        # Of each record in a workset: whose stream, which workset, whether inner, outlier or outer.
        found: list[tuple[Matrix, Matrix, Matrix]] = []
        for first in range(0, len(mine), _BLOCK):
            some = mine[first : first + _BLOCK]
            placed = worksets.place(points[some], bounds, -1)
            found.append((is_right[some], placed.homes, np.where(placed.is_inner, 0, 1)))
            who = is_right[some][placed.rows]
            found.append((who, placed.worksets, np.full(len(who), 2)))
        # Records of other partitions meet every workset, now or when it begins.
        others = rows[outer == partition]
        for first in range(0, len(others), _BLOCK):
            some = others[first : first + _BLOCK]
            who, where = worksets.near(points[some], bounds)
            found.append((is_right[some][who], where, np.full(len(who), 2)))
        compared += worksets.compared
        sides, homes, kinds = (np.concatenate(each) for each in zip(*found, strict=True))
        copies += len(homes)
        sizes = np.zeros((2, 3, worksets.count), np.int64)
        np.add.at(sizes, (sides, kinds, homes), 1)
        for mine_, theirs in (sizes, sizes[::-1]):
            compared += int(mine_[0] @ (theirs[1] + theirs[2]) + mine_[1] @ theirs[2])
        compared += int(sizes[0, 1] @ sizes[1, 1])
    return compared, copies


def pivots(cell: Cell, left: Matrix, right: Matrix) -> tuple[int, int]:
    """Comparisons of the product, with those to pivots, and rows that it stores."""
    schema = pa.schema([("v", pa.list_(pa.float64()))])
    streams = {"a": schema, "b": schema}
    spec = SimilaritySpec.of(
        streams,
        "a.v ~ b.v",
        metric="angular",
        threshold=cell.threshold,
        algorithm="pivots",
        distance=None,
    )

    def batch(points: Matrix) -> pa.RecordBatch:
        ends = pa.array(np.arange(len(points) + 1, dtype=np.int32) * 2)
        column = pa.ListArray.from_arrays(ends, pa.array(points.ravel()))
        return pa.record_batch([column], schema=schema)

    with (
        TemporaryDirectory() as place,
        open_store(
            place, spec.stream_schemas, backend="lsm", options=Options(memory_bytes=256 << 20)
        ) as store,
    ):
        join = local_join(spec, store, Context())
        for first in range(0, len(left), _BLOCK):
            join.process(Batch("a", batch(left[first : first + _BLOCK]))).close()
        placing = join.counts["pivot_distances"]
        stored = sum(rows.num_rows for rows in store.scan("a"))
        some = right[:: len(right) // _SAMPLE]
        for _ in join.process(Batch("b", batch(some), role=Role.PROBE)):
            pass
        compared = join.counts["compared_pairs"] * len(right) / len(some)
        return round(2 * placing + compared), 2 * stored


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=["2", "3"])
    parser.add_argument("--pivots", action="store_true", help="only pivots")
    asked = parser.parse_args()
    print("table  threshold  partitions  join            comparisons  copies  by the prototype")
    for cell, known in CELLS.items():
        if cell.table not in asked.tables:
            continue
        left, right = window(cell)
        expected = cell.threshold * len(left) * len(right)
        count = len(left) + len(right)
        found: dict[str, tuple[tuple[int, int], float | None]] = {
            "pivots": (pivots(cell, left, right), None)
        }
        if not asked.pivots:
            found["S3J"] = (s3j(cell, left, right), known[0])
        if known[1] is not None and not asked.pivots:
            keys = random_centroids(500, 2)
            for name, reference in zip(("ClusterJoin", "as published"), known[1:], strict=True):
                is_published = name == "as published"
                join = ClusterJoin(keys, angles, cell.threshold, as_published=is_published)
                found[name] = (join.counts(left, right), reference)
        for name, ((compared, copies), reference) in found.items():
            shown: Any = "" if reference is None else f"{reference:.2f}"
            print(
                f"{cell.table:5}  {cell.threshold:9g}  {cell.partitions:10d}  {name:14}  "
                f"{compared / expected:11.2f}  {copies / count:6.2f}  {shown:>8}",
                flush=True,
            )


if __name__ == "__main__":
    main()
