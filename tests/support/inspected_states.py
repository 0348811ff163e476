"""Small states for the commands that show them: a standalone store, and the buckets of a query."""

import json

import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from support.cli_cases import STREAM, rows, run

OPTIONS = Options(memory_bytes=8 << 20)


@pytest.fixture
def standalone(tmp_path):
    with LsmStore.open(str(tmp_path / "store"), [STREAM], options=OPTIONS) as store:
        store.append("people", *rows(500))
        store.commit()
    return tmp_path / "store"


@pytest.fixture
def buckets(tmp_path):
    for number in range(2):
        directory = tmp_path / "query" / f"bucket-{number}"
        directory.mkdir(parents=True)
        store = LsmStore.open_attempt(
            str(directory), [STREAM], batch_id=3, attempt_id="a", options=OPTIONS
        )
        store.append("people", *rows(10 + number))
        store.commit()
        store.close()
    return tmp_path / "query"


def commit_again(bucket):
    """A second commit in a bucket, on top of the first; its path."""
    (first,) = bucket.glob("commit-*.sst")
    found = json.loads(run("inspect", bucket, "--json").output)["pointer"]
    assert found.startswith(first.name)
    with LsmStore.open_attempt(
        str(bucket), [STREAM], pointer=found, batch_id=4, attempt_id="b", options=OPTIONS
    ) as store:
        store.append("people", *rows(5))
        store.commit()
    return max(bucket.glob("commit-*.sst"))
