"""Reads of ranges in random states against a brute-force model: what is written, deleted and
retracted in any order, in states of many runs, and read from snapshots too.
"""

import itertools
import random
import tempfile

import pyarrow as pa
import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.opening import open_store
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import KeyBounds, Mutation, StreamSchema
from support.contract_ranges import ROWS, VALUES, RangeModel, check_ranges, ordered

BACKENDS = ("lsm", "lsm", "lsm", "lsm", "memory", "rocksdb")
#: Cap of the backend that cannot spill: 25 batches of the largest rows are less.
MOST_BYTES = 512 * MIB
#: What a step may do.
ACTIONS = ("append",) * 5 + ("delete", "retract", "flush", "flush", "delete range", "snapshot")


class RandomState:
    """A store and its model, which random steps change."""

    def __init__(self, directory: str, seed: int, backend: str) -> None:
        self.chance = chance = random.Random(seed)
        self.kind = chance.choice(list(VALUES))
        self.domain = chance.choice([8, 20, 300])
        self.size = chance.choice([5, 60, 400, 3000])
        self.prefix = [f"k{at}" for at in range(chance.choice([0, 1, 1, 2]))]
        names = ((name, pa.int32()) for name in self.prefix)
        self.key = pa.schema([*names, ("value", self.kind)])
        self.texts = chance.choice([9, 9, 9, 5000])
        cap = chance.choice([5, 8, 16]) * MIB
        options = Options(
            memory_bytes=MOST_BYTES if backend == "memory" else cap,
            memtable_bytes=chance.choice([256, 1024]) * KIB,
        )
        streams = [StreamSchema(name, self.key, ROWS) for name in ("before", "timed", "behind")]
        self.store = open_store(directory, streams, backend=backend, options=options)
        self.model = RangeModel()
        self.ids = itertools.count()
        for name in ("before", "behind"):
            self.store.append(name, *self.batch(self.fresh(20)))

    def value(self):
        number = self.chance.randrange(self.domain)
        return VALUES[self.kind](number)

    def name(self):
        return (*(self.chance.randrange(3) for _ in self.prefix), self.value())

    def fresh(self, count):
        text = "x" * self.chance.randrange(self.texts)
        return [(self.name(), next(self.ids), text) for _ in range(count)]

    def batch(self, entries):
        keys = [dict(zip(self.key.names, entry[0], strict=True)) for entry in entries]
        rows = [{"id": entry[1], "text": entry[2]} for entry in entries]
        return (
            pa.RecordBatch.from_pylist(rows, schema=ROWS),
            pa.RecordBatch.from_pylist(keys, schema=self.key),
        )

    def step(self):
        chance, model = self.chance, self.model
        action = chance.choice(ACTIONS)
        if action == "append":
            fresh = self.fresh(chance.randrange(1, self.size + 1))
            self.store.append("timed", *self.batch(fresh))
            model.entries += fresh
        elif action == "delete":
            gone = self.fresh(chance.choice([1, 3, 12]))
            self.store.delete("timed", self.batch(gone)[1])
            names = {_place(entry[0]) for entry in gone}
            self._forget(lambda name: name in names)
        elif action == "retract" and model.entries:
            gone = chance.sample(model.entries, min(4, len(model.entries)))
            self.store.retract("timed", *self.batch(gone))
            taken = {entry[1] for entry in gone}
            model.entries = [entry for entry in model.entries if entry[1] not in taken]
        elif action == "delete range":
            self._delete_range()
        elif action == "flush" and isinstance(self.store, LsmStore):
            self.store.flush()
            if chance.random() < 0.2:
                self.store.compact()
            if chance.random() < 0.2:
                self.store.commit()
        elif action == "snapshot":
            with self.store.snapshot() as view:
                known = RangeModel()
                known.entries = [*model.entries]
                self.step()
                self.check(view, known)

    def _delete_range(self):
        low, high = sorted((self.name(), self.name()), key=_place)
        if self.prefix and self.chance.random() < 0.3:
            bounds = KeyBounds(prefix=low[:1])
            self._forget(lambda name: name[0] == low[0])
        else:
            bounds = KeyBounds(low=low, high=high)
            self._forget(lambda name: _place(low) <= name < _place(high))
        self.store.write([Mutation("delete_range", "timed", bounds)])

    def _forget(self, is_gone):
        self.model.entries = [e for e in self.model.entries if not is_gone(_place(e[0]))]

    def check(self, reader, model):
        chance = self.chance
        width = chance.randrange(len(self.key) + 1)
        count = chance.choice([1, 5, 40, 300])
        if len(model.entries) > 3000:
            count = min(count, 40)
        draws = [(self.name(), self.name()) for _ in range(count)]
        shape = chance.choice(["both", "both", "both", "low", "high", "neither"])
        if width == len(self.key):
            shape = "neither"
        elif width == 0 and shape == "neither":
            shape = "both"
        none = chance.random() < 0.1
        queries = []
        for a, b in draws:
            equal = tuple(None if none and chance.random() < 0.2 else x for x in a[:width])
            low = a[width : width + 1] if shape in ("both", "low") else None
            high = b[width : width + 1] if shape in ("both", "high") else None
            queries.append((equal, low, high))
        includes = (chance.random() < 0.5, chance.random() < 0.5)
        most = chance.choice([1, 300, 1 << 20])
        if len(model.entries) > 500:
            most = 1 << 20
        check_ranges(reader, model, "timed", queries, includes, max_bytes=most)


def _place(name):
    return tuple(map(ordered, name))


def go_through(seed: int, steps: int = 25) -> None:
    """One random state, checked after each of its steps."""
    backend = random.Random(seed).choice(BACKENDS)
    with tempfile.TemporaryDirectory() as directory:
        state = RandomState(directory, seed, backend)
        with state.store:
            for _ in range(steps):
                state.step()
                state.check(state.store, state.model)


@pytest.mark.parametrize("seed", range(6))
def test_ranges_of_random_states(seed: int) -> None:
    go_through(seed, 8)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_ranges_of_many_random_states(first: int) -> None:
    for seed in range(100 + first, 110 + first):
        go_through(seed)
