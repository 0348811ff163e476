"""Distances in the language of conditions give the rows of brute force."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from support.similar_cases import all_distances, threshold_of

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.list_(pa.float32()))])
TEXTS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.list_(pa.string()))])
NAMES = ("l2", "cosine", "angular", "manhattan", "chebyshev", "hamming", "haversine")


def joined(on: str, a: Any, b: Any, schema: pa.Schema = SCHEMA) -> set[tuple[int, int]]:
    with MultiwayJoin({"a": schema, "b": schema}, on=on) as join:
        list(join.process("a", a))
        return {(row["a_id"], row["b_id"]) for row in join.process("b", b).rows()}


@pytest.mark.parametrize("metric", NAMES)
def test_vectors(metric: str) -> None:
    rng = np.random.default_rng(2)
    sides = [rng.integers(1, 6, (30, 2)).astype(np.float64) for _ in range(2)]
    tables = []
    for vectors in sides:
        rows = [{"id": i, "k": i % 2, "v": v} for i, v in enumerate(vectors.tolist())]
        tables.append([*rows, {"id": 99, "k": 0, "v": None}, {"id": 98, "k": 0, "v": [0, np.nan]}])
    found = all_distances(metric, *sides)
    most = threshold_of(metric, found, 0.3)
    on = f"a.k = b.k AND {metric}_distance(a.v, b.v) <= {most!r}D"
    same = np.equal.outer(np.arange(30) % 2, np.arange(30) % 2)
    assert joined(on, *tables) == set(map(tuple, np.argwhere(same & (found <= most)).tolist()))


def test_sets() -> None:
    sets = [["x", "y"], ["y"], [], ["x", "y", "z"], None]
    rows = [{"id": i, "k": 0, "v": each} for i, each in enumerate(sets)]
    on = "a.k = b.k AND jaccard_distance(a.v, b.v) < 0.5"
    found = joined(on, rows, rows, TEXTS)
    assert found == {(0, 0), (0, 3), (3, 0), (1, 1), (2, 2), (3, 3)}


def test_texts() -> None:
    pytest.importorskip("rapidfuzz", reason="pip install 'lsmstate[similarity]'")
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
    rows = [{"id": i, "k": 0, "v": each} for i, each in enumerate(["ab", "abc", "x", None])]
    found = joined("a.k = b.k AND levenshtein(a.v, b.v) <= 1", rows, rows, schema)
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)}


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("levenshtein(a.v, b.v, 2) <= 2", "which is no distance; write levenshtein"),
        ("l2_distance(a.id, b.v) <= 2", "give lists of numbers of one length"),
        ("l2_distance(a.v) <= 2", "l2_distance takes 2 values"),
    ],
)
def test_what_is_no_distance_is_refused(condition: str, words: str) -> None:
    rows = [{"id": 1, "k": 0, "v": [1.0]}]
    with pytest.raises(InvalidArgumentError, match=words):
        joined(f"a.k = b.k AND {condition}", rows, rows)
