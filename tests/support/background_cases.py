"""A store whose flushes and merges are the background worker's, and what is appended to it."""

import dataclasses
import time
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.process.background_worker import worker
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(
    memory_bytes=16 << 20, memtable_bytes=512 << 10, fanout=2, background=True, sync="never"
)
BATCH = 200


def batch(number):
    rng = np.random.default_rng(number)
    keys = pa.record_batch([pa.array(rng.integers(0, 3000, BATCH))], schema=KEY)
    values = pa.array(np.arange(number * BATCH, (number + 1) * BATCH))
    texts = pa.array([f"some text of row {v} in batch {number}" * 3 for v in range(BATCH)])
    return pa.record_batch([values, texts], schema=ROWS), keys


def opened(directory, **changes):
    options = dataclasses.replace(OPTIONS, **changes)
    return LsmStore.open(str(directory), [STREAM], options=options)


def append(store, first, count):
    for number in range(first, first + count):
        store.append("s", *batch(number))
    return first + count


def append_until(store, wanted, first=0):
    for number in range(first, first + 2000):
        store.append("s", *batch(number))
        if wanted():
            return number + 1
    raise AssertionError("it never came about")


def values(store):
    found = np.concatenate([p.column(0).to_numpy() for p in store.scan("s", 1 << 18)])
    return np.sort(found).tolist()


def all_of(count):
    return list(range(count * BATCH))


def wait_for(what):
    until = time.monotonic() + 20
    while not what():
        assert time.monotonic() < until, "it took longer than 20 s"
        time.sleep(0.002)


@contextmanager
def no_worker():
    """The worker stands still between two slices."""
    with worker().standing:
        yield


def flush_of(store):
    return store._writes._flush
