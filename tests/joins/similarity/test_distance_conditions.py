"""A condition that bounds a distance is answered by the index of similarity joins."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.errors import InvalidArgumentError
from lsmstate.join import MultiwayJoin
from lsmstate.joins.specs.similarity import SimilaritySpec
from lsmstate.joins.specs.similarity_condition import METRIC_OF, similar_condition

VECTORS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.list_(pa.float64()))])
TEXTS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.string())])
SETS = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.list_(pa.string()))])


def schema_of(name: str) -> pa.Schema:
    return {"levenshtein": TEXTS, "jaccard_distance": SETS}.get(name, VECTORS)


def rows_of(name: str, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for at in range(40):
        vector: Any = rng.integers(-2, 3, 2).astype(float).tolist()
        if name == "levenshtein":
            vector = "".join(rng.choice(list("ab"), rng.integers(1, 5)))
        elif name == "jaccard_distance":
            vector = rng.choice(list("abcd"), rng.integers(0, 4)).tolist()
        key = None if at == 7 else int(rng.integers(3))
        found.append({"id": at, "k": key, "v": None if at == 5 else vector})
    return found


def pairs(name: str, on: str) -> tuple[type, list[tuple[int, int]]]:
    schema = schema_of(name)
    with MultiwayJoin({"a": schema, "b": schema}, on) as join:
        found = []
        for stream, seed in (("a", 1), ("b", 2)):
            found += [
                (r["a_id"], r["b_id"]) for r in join.process(stream, rows_of(name, seed)).rows()
            ]
        return type(join.spec), sorted(found)


@pytest.mark.parametrize("name", METRIC_OF)
@pytest.mark.parametrize("keys", ["a.k = b.k AND ", ""])
def test_the_index_gives_what_the_function_says(name: str, keys: str) -> None:
    if name == "levenshtein" and not find_spec("rapidfuzz"):
        pytest.skip("pip install 'lsmstate[similarity]'")
    limit = {"haversine_distance": 120_000, "cosine_distance": 0.1, "angular_distance": 0.15}
    most = limit.get(name, {"jaccard_distance": 0.5}.get(name, 1))
    kind, found = pairs(name, f"{keys}{name}(a.v, b.v) <= {most} AND a.id < b.id")
    _, expected = pairs(name, f"{keys}({name}(a.v, b.v) <= {most} OR FALSE) AND a.id < b.id")
    assert kind is SimilaritySpec
    assert found == expected != []


@pytest.mark.parametrize(
    ("on", "threshold", "rest"),
    [
        ("0.5 >= l2_distance(b.v, a.v) AND a.id <> b.id", 0.5, ("a.id <> b.id",)),
        ("l2_distance(a.v, b.v) BETWEEN 0 AND 2", 2.0, ()),
        ("l2_distance(a.v, b.v) < 1 AND a.k = b.k", np.nextafter(1, 0), ()),
        ("vector_l2_distance(a.v, b.v) <= 1", 1.01, ("vector_l2_distance(a.v, b.v) <= 1",)),
        (
            "vector_cosine_similarity(a.v, b.v) >= 0.9",
            0.11,
            ("vector_cosine_similarity(a.v, b.v) >= 0.9",),
        ),
    ],
)
def test_bounds_are_read(on: str, threshold: float, rest: tuple[str, ...]) -> None:
    found = similar_condition({"a": VECTORS, "b": VECTORS}, on)
    assert found is not None
    assert found.spec.threshold == pytest.approx(threshold, rel=1e-9)
    assert found.rest == rest
    assert found.spec.keys["a"] == (("k",) if "a.k" in on else ())


@pytest.mark.parametrize(
    "on",
    [
        "l2_distance(a.v, b.v) >= 1",
        "l2_distance(a.v, a.v) <= 1",
        "l2_distance(a.v, b.v) <= a.id",
        "l2_distance(a.v, b.v) <= -1",
        "jaccard_distance(a.v, b.v) <= 1",
        "a.k = b.k",
        "vector_cosine_similarity(a.v, b.v) <= 0.9",
        "NOT l2_distance(a.v, b.v) <= 1",
    ],
)
def test_other_conditions_are_read_in_another_way(on: str) -> None:
    assert similar_condition({"a": VECTORS, "b": VECTORS}, on) is None


def test_levenshtein_with_a_third_argument_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="levenshtein with a third argument gives -1"):
        MultiwayJoin({"a": TEXTS, "b": TEXTS}, "a.k = b.k AND levenshtein(a.v, b.v, 2) <= 2")
