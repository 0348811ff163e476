"""Similarity joins give the pairs of brute force, however rows are cut into batches."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import State, Time, similarity_join
from lsmstate.joins.local.similarity import kept_points
from lsmstate.joins.local.similarity.generated_keys import EditKeys
from lsmstate.joins.local.similarity.kept_points import KeptPoints
from lsmstate.joins.specs.similarity import VECTOR_METRICS
from support.sampling import each_value
from support.similar_cases import SimilarCase, all_distances, parts, threshold_of

BACKENDS = ("lsm", "rocksdb", "memory")
KINDS = (pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.float32()))
ID = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32()))])


def found_pairs(results: Any) -> list[tuple[int, int, float]]:
    return [(row["a_id"], row["b_id"], row["distance"]) for row in results.rows()]


def fed(case: SimilarCase, rng: random.Random, tmp_path: Path, **options: Any) -> Any:
    """All results, of a join that is closed and opened again now and then."""
    backend = rng.choice(BACKENDS)
    state = State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path))
    streams = dict.fromkeys(case.rows, case.schema)

    def opened() -> Any:
        return similarity_join(
            streams, "a.v ~ b.v", metric=case.metric, state=state, piece_bytes=5000, **options
        )

    join, found = opened(), []
    for stream, batch in parts(case, rng):
        if state.state_dir is not None and rng.random() < 0.3:
            join.commit()
            join.close()
            join = opened()
        found += found_pairs(join.process(stream, batch))
    join.close()
    return found


@each_value(times=2, metric=VECTOR_METRICS, seed=range(7))
def test_pairs_are_those_of_brute_force(
    metric: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are kept in memory, that are kept later, and that the store is asked for."""
    rng = random.Random(seed)
    monkeypatch.setattr(kept_points, "WORTH", [0, 1, 1000][seed % 3])
    if seed % 3 == 0:
        monkeypatch.setattr(KeptPoints, "begin", lambda _: None)
    width = 2 if metric == "haversine" else rng.choice([1, 2, 3, 4, 17, 384])
    case = SimilarCase.of(seed, metric, width, streams=rng.choice([1, 2]), kind=rng.choice(KINDS))
    threshold = threshold_of(metric, case.distances(), rng.choice([0, 0.01, 0.1, 0.5, 1]))
    by = rng.random() < 0.5
    options = {"by": ["k"]} if by else {}
    if rng.random() < 0.3:
        options["algorithm"] = rng.choice(["tiles", "pivots", "s3j"])
    found = fed(case, rng, tmp_path, threshold=threshold, **options)
    expected = case.expected(threshold, by)
    pairs = {(a, b) if len(case.rows) == 2 else (min(a, b), max(a, b)) for a, b, _ in found}
    assert len(pairs) == len(found)
    assert pairs == set(expected)
    for a, b, distance in found:
        pair = (a, b) if len(case.rows) == 2 else (min(a, b), max(a, b))
        assert distance == pytest.approx(expected[pair], rel=1e-9, abs=1e-7)


def batch(vectors: Any, first: int = 0, schema: pa.Schema = ID) -> pa.RecordBatch:
    rows = [{"id": first + i, "v": v} for i, v in enumerate(vectors)]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


@each_value(
    times=2,
    metric=["l2", "cosine", "manhattan", "chebyshev"],
    scale=[1e-170, 1e-158, 1e-30, 1e-9, 1.0, 1e9, 1e25, 1e200],
)
def test_bounds_of_float32_lose_no_pair(metric: str, scale: float) -> None:
    rng = np.random.default_rng(3)
    near = rng.standard_normal((40, 24))
    points = (np.concatenate([near, near + 1e-7 * rng.standard_normal((40, 24))]) + 5) * scale
    distances = all_distances(metric, points / scale, points / scale)
    if metric != "cosine":
        distances *= scale
    pairs = {(i, j) for i, j in zip(*np.triu_indices(80, 1), strict=True)}
    known = sorted(distances[i, j] for i, j in pairs)
    threshold = (known[45] + known[46]) / 2
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float64()))])
    with similarity_join({"a": schema}, "a.v ~ b.v", metric=metric, threshold=threshold) as join:
        found = found_pairs(join.process("a", batch(points.tolist(), schema=schema)))
    margin = 1e-12 * threshold + (1e-14 if metric == "cosine" else 0)
    sure = {p for p in pairs if distances[p] < threshold - margin}
    perhaps = {p for p in pairs if distances[p] <= threshold + margin}
    assert sure <= {(a, b) for a, b, _ in found} <= perhaps


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize(
    "columns",
    [["distance"], ["b_id", "A_v"], ["b_v", "b_id"], "a_id", ["a_id", "b_id", "distance"]],
)
def test_results_have_the_columns_that_are_asked_for(columns: Any, streams: int) -> None:
    rng = np.random.default_rng(3)
    given = [batch(rng.integers(0, 4, (40, 2)).tolist(), 40 * at) for at in range(3)]
    found = []
    for asked in (None, columns):
        schemas = dict.fromkeys(["a", "b"][:streams], ID)
        with similarity_join(
            schemas, "a.v ~ b.v", metric="l2", threshold=1.5, columns=asked, piece_bytes=500
        ) as join:
            results = [
                join.process(list(schemas)[at % streams], rows).to_table()
                for at, rows in enumerate(given)
            ]
            assert all(each.schema == join.output_schema for each in results)
            found.append(pa.concat_tables(results))
    names = {name.lower() for name in ([columns] if isinstance(columns, str) else columns)}
    assert found[1].schema.names == [n for n in found[0].schema.names if n.lower() in names]
    wanted = found[0].select(found[1].schema.names)
    assert sorted(map(str, found[1].to_pylist())) == sorted(map(str, wanted.to_pylist()))
    with similarity_join(
        {"a": ID}, "a.v ~ b.v", metric="l2", threshold=1.5, how="anti", columns=["v"]
    ) as join:
        assert join.process("a", given[0]).to_table().schema.names == ["v"]


@pytest.mark.parametrize("columns", [[], ["c_id"], 5])
def test_columns_that_results_do_not_have_are_refused(columns: Any) -> None:
    words = "name at least one|there is no column 'c_id'; did you mean|give the name of a column"
    with pytest.raises(InvalidArgumentError, match=words):
        similarity_join({"a": ID}, "a.v ~ b.v", metric="l2", threshold=1, columns=columns)


def test_anti_keeps_the_first_of_close_rows() -> None:
    points = [[0, 0], [0.5, 0], [5, 5], None, [5, 5.5], [float("nan"), 0], [9, 9]]
    with similarity_join({"a": ID}, "a.v ~ b.v", metric="l2", threshold=1, how="anti") as join:
        first = list(join.process("a", batch(points)).rows())
        later = list(join.process("a", batch([[1, 1], [9, 8], [20, 20]], 10)).rows())
        assert join.counts["ignored_vectors"] == 2
    assert [row["id"] for row in first] == [0, 2, 3, 5, 6]
    assert [row["id"] for row in later] == [10, 12]


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ([[1, 2], [1, 2, 3]], "list of row 1 has 3 components, and the first vector has 2"),
        ([[1, 2], None, [None, 2]], "the list of row 2 holds a null"),
    ],
)
def test_a_batch_that_does_not_fit_stores_nothing(vectors: Any, words: str) -> None:
    with similarity_join({"a": ID}, "a.v ~ b.v", metric="l2", threshold=1) as join:
        with pytest.raises(InvalidArgumentError, match=words):
            join.process("a", batch(vectors))
        assert not list(join.process("a", batch([[1, 2, 3]])))
        with pytest.raises(InvalidArgumentError, match="2 components, and the first vector has 3"):
            join.process("a", batch([[1, 2]]))
        assert len(list(join.process("a", batch([[1, 2, 3]], 5)).rows())) == 1


@each_value(
    times=2,
    kind=[pa.list_(pa.float32()), pa.list_(pa.int32())],
    how=["inner", "anti"],
    malformed=["skip", "side"],
)
def test_malformed_rows_are_left_out(malformed: Any, how: Any, kind: Any, tmp_path: Path) -> None:
    """Also in windows, where a wrapper stands around the join, and after a restart."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", kind)])
    metric: Any = {"metric": "l2", "threshold": 1}
    if kind.value_type == pa.int32():
        metric = {"metric": "jaccard", "threshold": 0.5}
    given = [
        [[None, 1], None, [1, 2], [1, 2, 3], [1, 2]],
        [[1, 2], [4], [None]],
    ]
    found, aside = [], []
    for number, vectors in enumerate(given):
        with similarity_join(
            {"a": schema}, "a.v ~ b.v", malformed=malformed, how=how, **metric,
            time=Time(event_time={"a": "at"}, window="1 hour"),
            state=State(state_dir=str(tmp_path)),
        ) as join:  # fmt: skip
            rows = [
                {"id": 10 * number + at, "at": 1000 * at, "v": v} for at, v in enumerate(vectors)
            ]
            found += list(join.process("a", pa.Table.from_pylist(rows, schema)).rows())
            if malformed == "side":
                assert join.malformed_rows is not None
                aside += join.malformed_rows["id"].to_pylist()
            left_out = [1, 1] if metric["metric"] == "jaccard" else [2, 2]
            assert join.counts["malformed_vectors"] == left_out[number]
            join.commit()
    if metric["metric"] == "jaccard":
        pairs = {(2, 3), (2, 4), (3, 4), (2, 10), (3, 10), (4, 10)}
        alone = [1, 2, 11]
    else:
        pairs = {(2, 4), (2, 10), (4, 10)}
        alone = [1, 2]
    if how == "anti":
        assert [row["id"] for row in found] == alone
    else:
        assert {(row["a_id"], row["b_id"]) for row in found} == pairs
        assert len(found) == len(pairs)
    if malformed == "side":
        assert aside == ([0, 12] if metric["metric"] == "jaccard" else [0, 3, 11, 12])


def test_the_dimension_may_be_said_first() -> None:
    with similarity_join(
        {"a": ID}, "a.v ~ b.v", metric="l2", threshold=1, dimension=2, malformed="side"
    ) as join:
        assert not list(join.process("a", batch([[1, 2, 3], [1, 2]])))
        assert join.malformed_rows is not None
        assert join.malformed_rows["id"].to_pylist() == [0]
        assert len(list(join.process("a", batch([[1, 2]], 5)).rows())) == 1


def manhattan_by_hand(a: Any, b: Any) -> Any:
    return np.abs(a - b).sum(axis=1)


def squared(a: Any, b: Any) -> Any:
    return ((a - b) ** 2).sum(axis=1)


def one_way(a: Any, b: Any) -> Any:
    return np.maximum(a - b, 0).sum(axis=1)


def away(a: Any, b: Any) -> Any:
    return np.abs(a - b).sum(axis=1) + 1


def below_zero(a: Any, b: Any) -> Any:
    return -np.abs(a - b).sum(axis=1)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (squared, "breaks the triangle inequality: the distance of"),
        (one_way, "is not the same in both directions"),
        (away, "is not 0 of equal vectors"),
        (below_zero, "gives no distance"),
    ],
)
def test_a_function_that_is_no_metric_is_refused_before_rows_are_stored(
    metric: Any, words: str
) -> None:
    rng = np.random.default_rng(1)
    points = rng.integers(0, 5, (50, 3)).tolist()
    with similarity_join({"a": ID}, "a.v ~ b.v", metric=metric, threshold=3) as join:
        with pytest.raises(InvalidArgumentError, match=words) as refusal:
            join.process("a", batch(points))
        assert f"{metric.__name__}' " in str(refusal.value)
        assert "algorithm='tiles'" in str(refusal.value)
    with similarity_join(
        {"a": ID}, "a.v ~ b.v", metric=metric, threshold=3, algorithm="tiles"
    ) as join:
        assert list(join.process("a", batch(points)))


@pytest.mark.parametrize("algorithm", ["auto", "pivots", "s3j"])
def test_pivots_lie_in_the_space_of_a_function(algorithm: Any) -> None:
    rng = np.random.default_rng(2)
    centres = rng.uniform(-50, 50, (30, 6))
    points = (centres[rng.integers(0, 30, 1500)] + rng.normal(0, 0.3, (1500, 6))).astype("f4")
    counts, answers = [], []
    for kind in (algorithm, "tiles"):
        with similarity_join(
            {"a": ID}, "a.v ~ b.v", metric=manhattan_by_hand, threshold=1.0, algorithm=kind
        ) as join:
            found = []
            for first in range(0, 1500, 500):
                some = points[first : first + 500].tolist()
                found += found_pairs(join.process("a", batch(some, first)))
            answers.append(sorted(found))
            counts.append(join.counts["compared_pairs"] + join.counts["pivot_distances"])
    assert answers[0] == answers[1] != []
    assert algorithm == "s3j" or counts[0] < counts[1] / 3  # whose worksets are many here


def test_a_metric_of_the_users_is_a_function() -> None:
    points = np.random.default_rng(1).integers(0, 5, (50, 3)).tolist()
    answers = []
    for metric in (manhattan_by_hand, "manhattan", "l1"):
        with similarity_join({"a": ID}, "a.v ~ b.v", metric=metric, threshold=3) as join:
            answers.append(sorted(found_pairs(join.process("a", batch(points)))))
    assert answers[0] == answers[1] == answers[2]


def test_the_euclidean_distance_has_two_names() -> None:
    points = np.random.default_rng(1).integers(0, 5, (50, 3)).tolist()
    answers = []
    for metric in ("l2", "euclidean"):
        with similarity_join({"a": ID}, "a.v ~ b.v", metric=metric, threshold=2) as join:
            answers.append(sorted(found_pairs(join.process("a", batch(points)))))
    assert answers[0] == answers[1] != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "euclid"}, "metric='euclid' is unknown"),
        ({"threshold": -1}, "it is the largest distance of a pair"),
        ({"threshold": "1"}, "give the largest distance, a number"),
        ({"how": "left"}, "how='left' is unknown"),
        ({"on": "a.v"}, "write the two columns as stream.column"),
        ({"on": "a.v ~ a.v"}, "both sides are called 'a'"),
        ({"on": "x.v ~ y.v"}, "neither side is the stream 'a'"),
        ({"on": "a.id ~ b.id"}, "l2 compares vectors; give a column of lists of numbers"),
        ({"distance": "a_id"}, "is the name of a column of the result"),
        ({"metric": "jaccard", "threshold": 1}, "at a Jaccard distance of 1 any two sets match"),
        ({"metric": "levenshtein"}, "levenshtein compares texts"),
        ({"by": "tenant"}, "there is no column 'tenant'"),
        ({"dimension": 0}, "give the number of components of a vector"),
        ({"metric": "haversine", "dimension": 3}, "which are two numbers; leave it out"),
        ({"metric": "jaccard", "dimension": 3, "threshold": 0}, "compares no vectors"),
        ({"malformed": "sid"}, "malformed='sid' is unknown; did you mean 'side'"),
        ({"metric": manhattan_by_hand, "algorithm": "grid"}, "does not find pairs by metric="),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    arguments = {"on": "a.v ~ b.v", "metric": "l2", "threshold": 1, **changes}
    with pytest.raises(InvalidArgumentError, match=words):
        similarity_join({"a": ID}, **arguments)


TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms")), ("v", pa.list_(pa.float32()))])


@pytest.mark.parametrize(
    ("metric", "backend", "algorithm"),
    [
        ("l2", "lsm", "pivots"),
        pytest.param("cosine", "rocksdb", "pivots", marks=pytest.mark.stress),
        pytest.param("chebyshev", "memory", "pivots", marks=pytest.mark.stress),
        pytest.param("l2", "memory", "s3j", marks=pytest.mark.stress),
        ("cosine", "lsm", "s3j"),
    ],
)
def test_pivots_change_with_the_data_and_lose_no_pair(
    metric: str, backend: str, algorithm: Any, tmp_path: Path
) -> None:
    """Clusters that move: the first pivots know nothing of the last rows."""
    rng = np.random.default_rng(5)
    state = State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path))
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32()))])
    options: Any = {"metric": metric, "threshold": 0.3 if metric != "cosine" else 0.001}

    def opened() -> Any:
        return similarity_join(
            {"a": schema}, "a.v ~ b.v", state=state, algorithm=algorithm, **options
        )

    vectors, found, join = [], [], opened()
    for step in range(3):
        centres = rng.uniform(-5, 5, (20, 8)) + 40 * step
        points = centres[rng.integers(0, 20, 600)] + 0.05 * rng.standard_normal((600, 8))
        vectors.append(points.astype(np.float32))
        found += found_pairs(join.process("a", batch(vectors[-1].tolist(), 600 * step)))
        if state.state_dir is not None:
            join.commit()
            join.close()
            join = opened()
    pivots = join._join._index.count
    join.close()
    assert pivots > (30 if algorithm == "pivots" or metric == "cosine" else 60)
    every = np.concatenate(vectors)
    close = np.triu(all_distances(metric, every, every) <= options["threshold"], 1)
    assert {(a, b) for a, b, _ in found} == set(map(tuple, np.argwhere(close).tolist()))
    assert len(found) == close.sum()


@each_value(window=[None, "10 minutes", ("10 minutes", "3 minutes")], seed=range(3))
def test_pairs_in_time_are_those_of_brute_force(window: Any, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    count, minute = 300, 60_000
    points = rng.integers(0, 5, (count, 2 + 3 * seed)).astype(np.float32)
    times = np.sort(rng.integers(0, 60 * minute, count))
    within = "4 minutes" if window is None else None
    backend = BACKENDS[seed]
    time = Time(event_time={"a": "at"}, within=within, window=window)
    state = State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path))
    found: list[Any] = []
    with similarity_join(
        {"a": TIMED}, "a.v ~ b.v", metric="l2", threshold=1, time=time, state=state
    ) as join:
        for first in range(0, count, 60):
            part = slice(first, first + 60)
            columns = [np.arange(count)[part], times[part], list(points[part])]
            rows = pa.record_batch(
                [*columns[:1], pa.array(columns[1], pa.timestamp("ms")), columns[2]], schema=TIMED
            )
            found += found_pairs(join.process("a", rows))
            list(join.advance(int(times[first + 59]) * 1000 - 1))
    early, late = np.minimum.outer(times, times), np.maximum.outer(times, times)
    if window is None:
        is_near = late - early <= 4 * minute
    else:
        slide = 10 * minute if isinstance(window, str) else 3 * minute
        is_near = np.zeros((count, count), bool)
        for start in range(-10 * minute // slide * slide, 60 * minute, slide):
            inside = (times >= start) & (times < start + 10 * minute)
            is_near |= np.logical_and.outer(inside, inside)
    close = np.triu((all_distances("l2", points, points) <= 1) & is_near, 1)
    assert {(a, b) for a, b, _ in found} == set(map(tuple, np.argwhere(close).tolist()))


def jaccard(a: list[str], b: list[str]) -> float:
    union = set(a) | set(b)
    return len(union - (set(a) & set(b))) / len(union) if union else 0.0


@each_value(times=2, seed=range(4), kind=[pa.string(), pa.int32()], algorithm=["auto", "tiles"])
def test_sets_are_those_of_brute_force(
    algorithm: Any, seed: int, kind: Any, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    words: list[Any] = [f"w{n}" for n in range(12)] if kind == pa.string() else list(range(12))
    sets = [rng.choices(words, k=rng.randrange(8)) for _ in range(150)]
    sets += [[*each, *each[:1]] for each in sets[::10]]
    threshold = rng.choice([0, 0.2, 0.25, 0.5, 0.9])
    schema = pa.schema([("id", pa.int64()), ("v", pa.list_(kind))])
    backend = BACKENDS[seed % 3]
    state = State(backend=backend, state_dir=None if backend == "memory" else str(tmp_path))
    found: list[Any] = []
    first = 0
    arguments: Any = {"metric": "jaccard", "threshold": threshold, "algorithm": algorithm}
    join = similarity_join({"a": schema}, "a.v ~ b.v", state=state, **arguments)
    while first < len(sets):
        count = rng.choice([1, 20, 60])
        found += found_pairs(join.process("a", batch(sets[first : first + count], first, schema)))
        first += count
        if state.state_dir is not None and rng.random() < 0.4:
            join.commit()
            join.close()
            join = similarity_join({"a": schema}, "a.v ~ b.v", state=state, **arguments)
    join.close()
    expected = {
        (i, j) for j in range(len(sets)) for i in range(j) if jaccard(sets[i], sets[j]) <= threshold
    }
    assert len(found) == len(expected)
    assert {(a, b) for a, b, _ in found} == expected
    assert all(distance == jaccard(sets[a], sets[b]) for a, b, distance in found)


def edits(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


@each_value(most=[0, 1, 2, 3], algorithm=["auto", "tiles"])
def test_texts_are_those_of_brute_force(algorithm: Any, most: int) -> None:
    pytest.importorskip("rapidfuzz", reason="pip install 'lsmstate[similarity]'")
    rng = random.Random(most)
    texts = ["".join(rng.choices("abé", k=rng.randrange(14))) for _ in range(36)]
    texts += ["".join(rng.choices("abc", k=rng.randrange(66, 72))) for _ in range(6)]
    for text in list(texts):
        place = rng.randrange(len(text) + 1)
        texts.append(text[:place] + rng.choice(["", "x"]) + text[place + rng.randrange(2) :])
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    with similarity_join(
        {"a": schema}, "a.v ~ b.v", metric="levenshtein", threshold=most, algorithm=algorithm
    ) as join:
        found = [
            pair
            for first in range(0, len(texts), 23)
            for pair in found_pairs(
                join.process("a", batch(texts[first : first + 23], first, schema))
            )
        ]
    pairs = {(i, j): edits(texts[i], texts[j]) for j in range(len(texts)) for i in range(j)}
    expected = {pair: float(found) for pair, found in pairs.items() if found <= most}
    assert {(a, b): distance for a, b, distance in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("most", range(6))
def test_texts_within_some_edits_share_a_key(most: int) -> None:
    """Of one letter, so that segments stand in many places, and of more than 16 bits."""
    rng = random.Random(most)
    keys = EditKeys(most)
    for letters in ("ab", "a😀é", "abcdefghij"):
        for _ in range(60):
            stored = "".join(rng.choices(letters, k=rng.randrange(40)))
            asked = stored
            for _ in range(rng.randrange(most + 1)):
                place = rng.randrange(len(asked) + 1)
                asked = (
                    asked[:place] + rng.choice(["", *letters]) + asked[place + rng.randrange(2) :]
                )
            one, other = keys.stored([stored]).keys, keys.asked([asked]).keys
            assert set(one.tolist()) & set(other.tolist()), (stored, asked)
    owners, found, *_ = keys.stored(["aaaa", "", "abc" * 30])
    assert sorted(set(owners.tolist())) == [0, 1, 2]
    assert len(set(zip(owners.tolist(), found.tolist(), strict=True))) == len(found)
