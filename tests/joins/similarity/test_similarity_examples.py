"""The two examples of similarity joins, checked by brute force."""

import importlib.util
from types import ModuleType

import numpy as np

from support.paths import ROOT
from support.similar_cases import all_distances


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_near_duplicates_keep_the_first_of_each() -> None:
    module = example("near_duplicates")
    texts = [*module.SOME, *(f"{text}!" for text in module.SOME), "something else"]
    vectors = np.array([module.embedding(text) for text in texts])
    close = np.tril(all_distances("cosine", vectors, vectors) <= 0.3, -1)
    expected = [text for text, row in zip(texts, close, strict=True) if not row.any()]
    assert list(module.first_of_each(texts)) == expected
    assert 1 < len(expected) < len(texts)


def test_meetings_are_those_of_brute_force() -> None:
    module = example("meetings")
    batches = list(module.positions(1200))
    rows = [row for batch in batches for row in batch.to_pylist()]
    places = np.array([row["place"] for row in rows])
    times = np.array([row["at"].timestamp() for row in rows])
    cars = np.array([row["car"] for row in rows])
    close = all_distances("haversine", places, places) <= 50
    close &= np.abs(np.subtract.outer(times, times)) <= 60
    close &= np.not_equal.outer(cars, cars)
    found = list(module.meetings(iter(batches)))
    assert len(found) == np.triu(close, 1).sum() > 10
