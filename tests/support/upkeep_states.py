"""States for the commands of upkeep: a standalone store of several runs, and a bucket."""

import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from support.cli_cases import STREAM, append

OPTIONS = Options(memory_bytes=8 * MIB, background=False)


@pytest.fixture
def standalone(tmp_path):
    """Three runs of 2,000 rows and 100 logged rows."""
    with LsmStore.open(str(tmp_path / "store"), [STREAM], options=OPTIONS) as store:
        for start in range(0, 6000, 2000):
            append(store, start, 2000)
            store.commit()
        append(store, 6000, 100)
    return tmp_path / "store"


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    store = LsmStore.open_attempt(
        str(tmp_path / "bucket"), [STREAM], batch_id=0, attempt_id="a", options=OPTIONS
    )
    append(store, 0, 1000)
    store.commit()
    store.close()
    return tmp_path / "bucket"
