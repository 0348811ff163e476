"""Indexes of documents: each is the best one for some documents, and the choice follows them."""

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.joins.document_data import log, nobench
from lsmstate.cython_ext.documents.attribute_values import AttributeValues, Documents
from lsmstate.cython_ext.documents.json_reader import JsonReader
from lsmstate.errors import InvalidArgumentError
from lsmstate.joins.local.documents import adaptive_index
from lsmstate.joins.local.documents.adaptive_index import (
    INDEXES,
    AdaptiveIndex,
    Choice,
    costs_of,
)
from support.document_cases import leaves, pairs_of, random_documents

NO_LIMIT = 1 << 40


def read(documents: list[dict[str, Any]], values: AttributeValues | None = None) -> Documents:
    texts = pa.array([json.dumps(each) for each in documents])
    return JsonReader(values or AttributeValues()).read(texts)


def few_shapes(count: int) -> list[dict[str, Any]]:
    """Documents of three shapes, whose values are rare."""
    rng = random.Random(1)
    shapes = [("a", "b"), ("b", "c", "d"), ("a", "d", "e")]
    return [{name: rng.randrange(count) for name in rng.choice(shapes)} for _ in range(count)]


def found_by(index: Any, documents: Documents, step: int) -> set[tuple[int, int]]:
    """All pairs of documents, looked up and stored in turn."""
    found = set()
    for first in range(0, len(documents), step):
        places = np.arange(first, min(first + step, len(documents)), dtype=np.int64)
        index.append(documents, places)
        position = skip = 0
        while position < len(places):
            positions, numbers, position, skip = index.pairs(
                documents, places, places, position, skip, 7
            )
            found |= set(zip(numbers.tolist(), (positions + first).tolist(), strict=True))
    return found


@pytest.mark.parametrize("at_least", [1, 2])
@pytest.mark.parametrize("name", [*INDEXES, "auto"])
def test_every_index_finds_the_pairs_of_brute_force(
    name: str, at_least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_index, "_FIRST", 50)
    monkeypatch.setattr(adaptive_index, "_GROWTH", 2)
    monkeypatch.setattr(adaptive_index, "_BETTER", 10.0)  # every trial but one builds another
    documents = random_documents(400, 17)
    known = read(documents)
    if name == "auto":
        index: Any = AdaptiveIndex(known.values, at_least, Choice(), NO_LIMIT)
    else:
        index = INDEXES[name](known.values, at_least)
    found = found_by(index, known, 30)
    assert found == pairs_of([leaves(each) for each in documents], at_least)
    assert index.nbytes > 0


@pytest.mark.parametrize(
    ("documents", "best"), [(log(5000), "bitmaps"), (few_shapes(5000), "by_shape")]
)
def test_the_cheapest_index_is_chosen(documents: list[dict[str, Any]], best: str) -> None:
    known = read(documents)
    choice = Choice("fp_tree")
    index = AdaptiveIndex(known.values, 1, choice, NO_LIMIT)
    places = np.arange(len(known), dtype=np.int64)
    index.append(known, places, (np.zeros(len(known), np.int64), np.empty(0, np.int64)))
    assert index.name == choice.index == best
    assert len(index) == len(documents)
    # The next window begins with it.
    assert AdaptiveIndex(known.values, 1, choice, NO_LIMIT).name == best


def test_trees_suit_documents_that_share_their_first_attributes() -> None:
    costs = costs_of(read(nobench(5000)), 1, NO_LIMIT)
    assert min(costs, key=lambda name: costs[name]) in ("fp_tree", "by_shape")


def test_an_index_that_would_take_too_much_is_not_chosen() -> None:
    known = read(few_shapes(5000))
    assert "by_shape" in costs_of(known, 1, NO_LIMIT)
    assert costs_of(known, 1, 1000) == {}
    index = AdaptiveIndex(known.values, 1, Choice(), 1000)
    index.append(known, np.arange(len(known), dtype=np.int64))
    assert index.name == "bitmaps"


def test_documents_of_other_values_are_refused() -> None:
    index = INDEXES["by_shape"](AttributeValues())
    with pytest.raises(InvalidArgumentError, match="other values"):
        index.append(read([{"a": 1}]), np.zeros(1, np.int64))
