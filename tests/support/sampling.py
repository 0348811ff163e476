"""How many cases a test takes: a spread few by default, or under ``stress`` every one."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

#: Gives a test ``every``, False in `make test`, True in `make stress`.
some_or_every = pytest.mark.parametrize(
    "every",
    [False, pytest.param(True, marks=[pytest.mark.stress, pytest.mark.timeout(3600)])],
    ids=["some", "every"],
)


def each_value(times: int = 1, **values: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by all combinations of the values.

    `make test` takes as many of them as the longest list has values, ``times`` as often: each value
    is in one at least. All others are stress tests.
    """
    lists = [list(each) for each in values.values()]
    default = {
        tuple((turn + position * shift) % len(each) for position, each in enumerate(lists))
        for turn in range(max(map(len, lists)))
        for shift in range(times)
    }
    return pytest.mark.parametrize(
        list(values),
        [
            pytest.param(
                *(each[at] for each, at in zip(lists, places, strict=True)),
                marks=() if places in default else pytest.mark.stress,
            )
            for places in itertools.product(*(range(len(each)) for each in lists))
        ],
    )
