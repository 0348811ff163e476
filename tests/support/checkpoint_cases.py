"""Standalone stores with named checkpoints, and what a checkpoint holds."""

import dataclasses

from lsmstate import open_checkpoint
from lsmstate.lsm.checkpoints import list_checkpoints
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB
from support.crash_cases import OPTIONS as SMALL
from support.crash_cases import found
from support.sample_streams import STREAMS

#: Room for several stores at once.
#: In a fixed order, so that a cut at the same number is a cut at the same operation.
OPTIONS = dataclasses.replace(SMALL, memory_bytes=16 * MIB, background=False)


def opened(directory, options=OPTIONS):
    return LsmStore.open(str(directory), STREAMS, options=options)


def at(directory, name):
    """The ids in a checkpoint, every block of which is checked."""
    with open_checkpoint(str(directory), name, options=OPTIONS) as store:
        store.check()
        return found(store)


def names(directory):
    return [checkpoint.name for checkpoint in list_checkpoints(str(directory))]
