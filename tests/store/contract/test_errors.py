"""The error classes as users see them: by their public names."""

import pickle

import pytest

import lsmstate

NAMES = [name for name in lsmstate.__all__ if name.endswith(("Error", "Warning"))]


@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_named_and_pickled_as_it_is_imported(name: str) -> None:
    kind = getattr(lsmstate, name)
    assert (kind.__module__, kind.__qualname__) == ("lsmstate", name)
    assert pickle.loads(pickle.dumps(kind)) is kind
    copy = pickle.loads(pickle.dumps(kind("what is wrong")))
    assert (type(copy), str(copy)) == (kind, "what is wrong")


def test_a_pickled_corruption_keeps_its_place() -> None:
    copy = pickle.loads(pickle.dumps(lsmstate.CorruptionError("checksum", "a.sst", 4096)))
    assert str(copy) == "a.sst at offset 4096: checksum"
    assert (copy.path, copy.offset) == ("a.sst", 4096)
