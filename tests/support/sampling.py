"""How many of the places that could be cut a test cuts at: some, or under ``stress`` every one."""

import pytest

#: Gives a test ``every``, False in `make test`, True in `make stress`.
some_or_every = pytest.mark.parametrize(
    "every",
    [False, pytest.param(True, marks=[pytest.mark.stress, pytest.mark.timeout(3600)])],
    ids=["some", "every"],
)
