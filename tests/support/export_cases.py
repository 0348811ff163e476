"""States to export, and what is found of them where they were restored."""

import errno
import shutil
from pathlib import Path

import lsmstate
from lsmstate.lsm.store import LsmStore
from support.checkpoint_cases import OPTIONS, opened
from support.crash_cases import BATCHES, found
from support.sample_streams import STREAMS, customers, keys_of


def filled(directory, batches=BATCHES):
    with opened(directory) as store:
        for batch in batches:
            store.append("customers", *batch)


def rows_of(directory):
    """The ids in a standalone store, which also goes on."""
    with opened(directory) as store:
        store.check()
        state = found(store)
        store.append("customers", customers(77_777), keys_of(999))
        store.commit()
    with opened(directory) as store:
        assert found(store) == [*state, 77_777]
    return state


def stored(place):
    return sorted(path.name for path in Path(place).iterdir() if path.name.startswith("run-"))


def catalogs(place):
    return sorted(path for path in Path(place).iterdir() if path.name.startswith("EXPORT-"))


def attempts(directory, number=4):
    pointers = []
    directory.mkdir()
    for batch in range(number):
        store = LsmStore.open_attempt(
            str(directory),
            STREAMS,
            pointer=pointers[-1] if pointers else None,
            batch_id=batch,
            attempt_id="a",
            options=OPTIONS,
        )
        with store:
            store.append("customers", *BATCHES[batch])
            pointers.append(store.commit())
    return pointers


def long_store(directory):
    """Files of several pieces."""
    options = lsmstate.Options(memory_bytes=16 << 20, compression="none", bottom_compression="none")
    with LsmStore.open(str(directory), STREAMS, options=options) as store:
        rows = customers(*range(4000), name="w" * 900)
        store.append("customers", rows, keys_of(*range(4000)))
        store.checkpoint("long")


def copied(place, target):
    """Files of their own: links would let damage reach the source."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(place, target)
    return target


def no_links(source, target):
    raise OSError(errno.EXDEV, "Invalid cross-device link", target)
