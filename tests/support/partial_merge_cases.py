"""Attempts of one bucket whose large merges take many commits, beside a dict."""

import random

import pyarrow as pa
import pytest

from lsmstate.lsm import version_set
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(memory_bytes=16 << 20, fanout=2, file_bytes=64 << 10)
KEYS = 500


@pytest.fixture(autouse=True)
def little_is_paid(monkeypatch):
    """So that a small state has merges of many commits."""
    monkeypatch.setattr(version_set, "LEAST_MERGE_BYTES", 100_000)
    monkeypatch.setattr(version_set, "MERGES_PER_WRITE", 4)


class Attempts:
    """One bucket, batch after batch, beside a dict."""

    def __init__(self, directory, options=OPTIONS):
        self.directory = str(directory)
        self.options = options
        self.pointer, self.batch_id, self.number = None, 0, 0
        self.model = {}
        self.chance = random.Random(5)

    def open(self, pointer=None, attempt_id="a"):
        return LsmStore.open_attempt(
            self.directory,
            [STREAM],
            pointer=pointer or self.pointer,
            batch_id=self.batch_id,
            attempt_id=attempt_id,
            options=self.options,
        )

    def write(self, store, count):
        keys = [self.chance.randrange(KEYS) for _ in range(count)]
        numbers = range(self.number, self.number + count)
        self.number += count
        noise = [self.chance.randbytes(40).hex() for _ in numbers]
        rows = pa.record_batch([pa.array(numbers), pa.array(noise)], schema=ROWS)
        store.append("s", rows, keys_of(keys))
        for key, number in zip(keys, numbers, strict=True):
            self.model.setdefault(key, []).append(number)
        gone = self.chance.sample(range(KEYS), 3)
        store.delete("s", keys_of(gone))
        low = self.chance.randrange(KEYS)
        store.delete_range("s", low=(low,), high=(low + 5,))
        for key in (*gone, *range(low, low + 5)):
            self.model.pop(key, None)

    def batch(self, count=400):
        """Counters of the attempt that commits one."""
        self.batch_id += 1
        with self.open() as store:
            self.write(store, count)
            self.pointer = store.commit()
            return store.stats().counters

    def check(self):
        self.batch_id += 1
        with self.open() as store:
            assert values(store) == sorted(v for found in self.model.values() for v in found)
            store.check()
            return store


def keys_of(keys):
    return pa.record_batch([pa.array(keys, pa.int64())], schema=KEY)


def values(store):
    return sorted(v for piece in store.scan("s") for v in piece.column(0).to_pylist())
