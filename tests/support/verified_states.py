"""A store whose checkpoint holds files that a merge has replaced, and the files that count."""

from contextlib import contextmanager

import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.tools.inspection import find_states
from support.cli_cases import STREAM, append


@contextmanager
def opened(directory, **options):
    given = {"memory_bytes": 8 * MIB, "background": False, **options}
    with LsmStore.open(str(directory), [STREAM], options=Options(**given)) as store:
        yield store


@pytest.fixture
def kept(tmp_path):
    """A store with a checkpoint, of whose files a merge has replaced all; the directory."""
    with opened(tmp_path / "store") as store:
        for start in range(0, 3000, 1000):
            append(store, start, 1000)
            store.commit()
        store.checkpoint("one")
        append(store, 3000, 1000)
        store.compact()
        return tmp_path / "store"


def live_files(directory):
    (state,) = find_states(str(directory))
    return {file.name for file in state.found.edit.files}


def state_files(state):
    return [file.name for file in state.found.edit.files]
