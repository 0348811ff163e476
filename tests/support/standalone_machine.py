"""Random operations on a standalone store and the model; it is closed, killed, and restored."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lsmstate
from lsmstate.cython_ext.base.file import set_fault_hook
from lsmstate.errors import InvalidArgumentError
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB
from support.model import ModelStore
from support.power_cut import Disk
from support.sample_streams import STREAMS, customers, iterated, keys_of, scanned
from support.store_machine import BOUNDS, KEYS, OPTIONS, STREAM_NAMES, model_keys, rows_of

SYNCED_OPTIONS = st.builds(
    dataclasses.replace,
    OPTIONS,
    sync=st.sampled_from(["always", "commit"]),
    memory_bytes=st.just(16 * MIB),
)
STREAMS_BY_NAME = {stream.name: stream for stream in STREAMS}
NAMES = st.sampled_from(["a", "b", "c"])
SEEDS = st.integers(0, 1 << 32)


class Machine(RuleBasedStateMachine):
    """``models`` are the states since the last commit, of which the last is the present one: what
    a power cut may go back to, unless each write is forced to the disk."""

    def __init__(self):
        super().__init__()
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.base = tempfile.TemporaryDirectory(dir=base)
        self.number = self.row_id = 0
        self.models = [ModelStore(["customers", "returns"])]
        self.checkpoints = {}
        self.snapshots = []  # with their models; they end with the store
        self.store = None

    @property
    def model(self):
        return self.models[-1]

    @initialize(options=SYNCED_OPTIONS)
    def start(self, options):
        self.open_in(self.new_directory(), options)

    def new_directory(self):
        self.number += 1
        return Path(self.base.name) / str(self.number)

    def open_in(self, directory, options):
        self.directory, self.options = directory, options
        self.disk = Disk(directory)
        set_fault_hook(self.disk)
        self.store = LsmStore.open(str(directory), STREAMS, options=options)

    def abandon(self):
        """The process is gone: nothing it does from here on reaches the next directory."""
        set_fault_hook(None)
        self.snapshots.clear()
        self.store.close()
        shutil.rmtree(self.directory)

    def changed(self):
        self.models.append(self.model.copy())

    def committed(self):
        self.models = [self.model]

    @rule(stream=STREAM_NAMES, keys=KEYS, kind=st.sampled_from(["append", "put"]))
    def write(self, stream, keys, kind):
        self.changed()
        numbers = range(self.row_id, self.row_id + len(keys))
        self.row_id += len(keys)
        rows, batch = rows_of(stream, numbers), keys_of(*keys)
        stored = getattr(self.store, kind)(stream, rows, batch)
        assert stored == getattr(self.model, kind)(stream, rows.to_pylist(), model_keys(batch))

    @rule(count=st.sampled_from([10, 700]), keys=st.sampled_from([1, 7, 1000]))
    def append_many(self, count, keys):
        self.changed()
        numbers = range(self.row_id, self.row_id + count)
        self.row_id += count
        rows = customers(*numbers, name="wide" * 60)
        batch = keys_of(*[n % keys for n in numbers])
        assert self.store.append("customers", rows, batch) == count
        self.model.append("customers", rows.to_pylist(), model_keys(batch))

    @rule(stream=STREAM_NAMES, keys=KEYS)
    def delete(self, stream, keys):
        self.changed()
        self.store.delete(stream, keys_of(*keys))
        self.model.delete(stream, model_keys(keys_of(*keys)))

    @rule(stream=STREAM_NAMES, keys=KEYS)
    def retract_the_first(self, stream, keys):
        """Of rows that are there: what is pending could not be told apart after a cut."""
        wanted = model_keys(keys_of(*dict.fromkeys(keys)))
        live = [key for key in wanted if self.model.probe(stream, [key])[0]]
        if live:
            self.changed()
            first = [self.model.probe(stream, [key])[0][0] for key in live]
            rows = pa.RecordBatch.from_pylist(first, schema=STREAMS_BY_NAME[stream].rows)
            batch = pa.RecordBatch.from_pylist(
                [dict(zip(STREAMS_BY_NAME[stream].key.names, key, strict=True)) for key in live],
                schema=STREAMS_BY_NAME[stream].key,
            )
            assert self.store.retract(stream, rows, batch) == len(live)
            self.model.retract(stream, first, live)

    @rule()
    def take_snapshot(self):
        if len(self.snapshots) == 3:
            self.snapshots.pop(0)[0].close()
        self.snapshots.append((self.store.snapshot(), self.model.copy()))

    @precondition(lambda self: self.snapshots)
    @rule(stream=STREAM_NAMES, pick=st.integers(0, 2), reverse=st.booleans())
    def read_snapshot(self, stream, pick, reverse):
        snapshot, model = self.snapshots[pick % len(self.snapshots)]
        found = iterated(snapshot, stream, reverse=reverse, max_bytes=5000)
        assert found == model.iterate(stream, reverse=reverse)

    @rule(stream=STREAM_NAMES, low=BOUNDS, high=BOUNDS, reverse=st.booleans())
    def iterate(self, stream, low, high, reverse):
        found = iterated(self.store, stream, low=low, high=high, reverse=reverse)
        assert found == self.model.iterate(stream, low, high, reverse=reverse)

    @rule(stream=STREAM_NAMES, low=BOUNDS, high=BOUNDS)
    def delete_range(self, stream, low, high):
        self.changed()
        self.store.delete_range(stream, low=low, high=high)
        self.model.delete_range(stream, low, high)

    @rule()
    def flush(self):
        self.store.flush()

    @rule()
    def compact(self):
        self.store.compact()

    @rule()
    def commit(self):
        self.store.commit()
        self.committed()

    @rule(name=NAMES)
    def checkpoint(self, name):
        if name in self.checkpoints:
            with pytest.raises(InvalidArgumentError, match="already"):
                self.store.checkpoint(name)
            return
        self.store.checkpoint(name)
        self.committed()
        self.checkpoints[name] = self.model.copy()

    @rule(name=NAMES)
    def delete_checkpoint(self, name):
        if self.checkpoints.pop(name, None) is not None:
            self.store.checkpoints.delete(name)

    @rule()
    def checkpoints_are_there(self):
        assert {each.name for each in self.store.checkpoints} == set(self.checkpoints)
        for name, model in self.checkpoints.items():
            with lsmstate.open_checkpoint(str(self.directory), name, options=self.options) as store:
                assert rows_in(store) == rows_of_model(model)

    @rule()
    def scan(self):
        assert rows_in(self.store) == rows_of_model(self.model)

    @rule(options=SYNCED_OPTIONS)
    def reopen(self, options):
        self.snapshots.clear()
        self.store.close()
        self.store = LsmStore.open(str(self.directory), STREAMS, options=options)
        self.options = options
        self.committed()

    @rule(options=SYNCED_OPTIONS)
    def kill(self, options):
        """What the system was given stays; the disk still knows what was not forced to it."""
        directory = self.new_directory()
        self.disk.move_to(directory)
        self.abandon()
        self.directory, self.options = directory, options
        set_fault_hook(self.disk)
        self.store = LsmStore.open(str(directory), STREAMS, options=options)
        self.committed()

    @rule(options=SYNCED_OPTIONS, seed=SEEDS)
    def cut_the_power(self, options, seed):
        directory = self.new_directory()
        self.disk.after_the_cut(directory, Random(seed))
        possible = self.models[-1:] if self.options.sync == "always" else self.models
        self.abandon()
        self.open_in(directory, options)
        found = rows_in(self.store)
        kept = [model for model in possible if rows_of_model(model) == found]
        assert kept
        self.models = kept[-1:]

    @precondition(lambda self: self.checkpoints)
    @rule(options=SYNCED_OPTIONS, data=st.data())
    def restore(self, options, data):
        name = data.draw(st.sampled_from(sorted(self.checkpoints)))
        source = str(self.directory)
        if data.draw(st.booleans()):
            backup = Path(self.base.name) / "backup"
            lsmstate.export(source, backup, checkpoint=name, name=f"{name}-{self.number}")
            name, source = f"{name}-{self.number}", str(backup)
        model = self.checkpoints[name.partition("-")[0]]
        directory = self.new_directory()
        lsmstate.restore(source, str(directory), name=name)
        self.abandon()
        self.open_in(directory, options)
        self.models, self.checkpoints = [model], {}

    @invariant()
    def stays_under_the_cap(self):
        if self.store is not None:
            assert self.store.stats().memory_bytes <= self.options.memory_bytes

    def teardown(self):
        set_fault_hook(None)
        if self.store is not None:
            self.store.close()
        self.base.cleanup()


def rows_in(store):
    return {name: by_id(scanned(store, name)) for name in ("customers", "returns")}


def rows_of_model(model):
    return {name: by_id(model.scan(name)) for name in ("customers", "returns")}


def by_id(rows):
    return sorted(rows, key=lambda row: row["id"])


def configured(machine: type, examples: int, steps: int) -> type:
    """A unittest.TestCase."""
    machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    return machine.TestCase
