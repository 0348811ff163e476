"""Standalone stores with small memtables, their logs and manifests, and what is read of them."""

import dataclasses
import shutil

from lsmstate.lsm.store import LsmStore
from lsmstate.options import KIB, MIB, Options
from support.sample_streams import STREAMS, ids, scanned

SMALL = Options(memory_bytes=5 * MIB, memtable_bytes=256 * KIB)
#: Opening such a store leaves the logs as they are until the next commit.
UNSYNCED = dataclasses.replace(SMALL, sync="never")


def opened(directory, options=SMALL, streams=STREAMS):
    return LsmStore.open(str(directory), streams, options=options)


def all_ids(directory, **options):
    with opened(directory, **options) as store:
        return sorted(ids(scanned(store, "customers")))


def killed(directory, left):
    """What the directory of an open store would be if its process were killed now."""
    # Who closes LOCK in the owner's process drops its lock.
    shutil.copytree(directory, left, ignore=shutil.ignore_patterns("LOCK"))
    return left


def logs(directory):
    return sorted(directory.glob("changelog-*"))


def manifests(directory):
    return sorted(directory.glob("MANIFEST-*"))
