"""Random operations on a store and on the model, which must agree."""

import dataclasses
import tempfile

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lsmstate.opening import open_attempt
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import KeyBounds, Mutation, StateStore
from support.model import ModelStore
from support.sample_streams import RETURNS, STREAMS, customers, fetched, iterated, keys_of, scanned

KEYS = st.lists(
    st.one_of(
        st.none(),
        st.integers(0, 6),
        st.tuples(st.integers(-1, 1), st.sampled_from(["", "a", "a\0", "b" * 40])),
    ),
    max_size=12,
)
#: None, or values of the first key columns.
BOUNDS = st.one_of(
    st.none(),
    st.tuples(st.integers(-1, 7)),
    st.tuples(st.integers(-1, 7), st.sampled_from(["", "a", "a\0", "b", "s1"])),
)
AGAIN = st.sampled_from(["append", "retract"])
STREAM_NAMES = st.sampled_from(["customers", "returns"])


#: Small parts, so that a few appends flush, merge and evict.
OPTIONS = st.builds(
    Options,
    memory_bytes=st.sampled_from([6 * MIB, 16 * MIB]),
    memtable_bytes=st.sampled_from([None, 256 * KIB]),
    block_bytes=st.sampled_from([1 * KIB, 16 * KIB]),
    filter_bits_per_key=st.sampled_from([0, 10]),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
    bottom_compression=st.sampled_from(["lz4", "zstd", "none"]),
    fanout=st.sampled_from([2, 4]),
    max_runs=st.sampled_from([2, 8]),
    file_bytes=st.sampled_from([64 * KIB, 32 * MIB]),
    background=st.booleans(),
    merging=st.sampled_from(["lazy", "leveled", "tiered"]),
)


def store_machine(backend: str, examples: int, steps: int = 40) -> type:
    """A unittest.TestCase: random operations on a store and the model; reopening is one, each
    time with other options."""

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.directory = tempfile.TemporaryDirectory()
            self.committed = [(None, ModelStore(["customers", "returns"]))]
            self.model = self.committed[0][1].copy()
            self.batch_id = 0
            self.row_id = 0
            self.store: StateStore | None = None
            self.snapshots = []  # with their models; they end with the store

        @initialize(options=OPTIONS)
        def start(self, options):
            self.open_at(None, options)

        def open_at(self, pointer, options):
            self.batch_id += 1
            if backend == "memory":
                # It cannot spill, and its cap has a test of its own.
                options = dataclasses.replace(options, memory_bytes=256 * MIB)
            self.options = options
            self.store = open_attempt(
                self.directory.name,
                STREAMS,
                backend=backend,
                pointer=pointer,
                batch_id=self.batch_id,
                attempt_id="machine",
                options=options,
            )
            self.is_committed = False

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, keys=KEYS)
        def append(self, stream, keys):
            rows, batch = self.new_rows(stream, len(keys)), keys_of(*keys)
            stored = self.store.append(stream, rows, batch)
            assert stored == self.model.append(stream, rows.to_pylist(), model_keys(batch))

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, keys=KEYS)
        def put(self, stream, keys):
            rows, batch = self.new_rows(stream, len(keys)), keys_of(*keys)
            stored = self.store.put(stream, rows, batch)
            assert stored == self.model.put(stream, rows.to_pylist(), model_keys(batch))

        @precondition(lambda self: not self.is_committed)
        @rule(
            parts=st.lists(
                st.tuples(
                    st.sampled_from(["append", "put", "delete", "retract", "delete_range"]),
                    STREAM_NAMES,
                    KEYS,
                ),
                max_size=4,
            )
        )
        def write(self, parts):
            mutations, expected = [], 0
            for kind, stream, keys in parts:
                batch = keys_of(*keys)
                if kind == "delete":
                    mutations.append(Mutation(kind, stream, batch))
                    self.model.delete(stream, model_keys(batch))
                elif kind == "delete_range":
                    low = lowest_of(keys)
                    mutations.append(Mutation(kind, stream, KeyBounds(low)))
                    self.model.delete_range(stream, low)
                else:
                    if kind == "retract":  # rows that may be there
                        numbers = [max(0, self.row_id - 4 + i % 4) for i in range(len(keys))]
                        rows = rows_of(stream, numbers)
                    else:
                        rows = self.new_rows(stream, len(keys))
                    mutations.append(Mutation(kind, stream, batch, rows))
                    write = getattr(self.model, kind)
                    expected += write(stream, rows.to_pylist(), model_keys(batch))
            assert self.store.write(mutations) == expected

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, keys=KEYS, back=st.integers(0, 30), kind=AGAIN)
        def retract_or_append_again(self, stream, keys, back, kind):
            """Rows that may have been there, so that some are equal."""
            numbers = [max(0, self.row_id - back + i % 4) for i in range(len(keys))]
            rows, batch = rows_of(stream, numbers), keys_of(*keys)
            stored = getattr(self.store, kind)(stream, rows, batch)
            taken = getattr(self.model, kind)(stream, rows.to_pylist(), model_keys(batch))
            assert stored == taken

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, keys=KEYS)
        def retract_the_first(self, stream, keys):
            batch = keys_of(*keys)
            live = self.model.probe(stream, model_keys(batch))
            first = [rows[0]["id"] if rows else 0 for rows in live]
            rows = rows_of(stream, first)
            stored = self.store.retract(stream, rows, batch)
            assert stored == self.model.retract(stream, rows.to_pylist(), model_keys(batch))

        def new_rows(self, stream, count):
            """Rows that were never there before."""
            numbers = range(self.row_id, self.row_id + count)
            self.row_id += count
            return rows_of(stream, numbers)

        @precondition(lambda self: not self.is_committed)
        @rule(count=st.sampled_from([10, 700, 1500]), keys=st.sampled_from([1, 7, 1000]))
        def append_many(self, count, keys):
            numbers = range(self.row_id, self.row_id + count)
            self.row_id += count
            rows = customers(*numbers, name="wide" * 60)
            batch = keys_of(*[n % keys for n in numbers])
            assert self.store.append("customers", rows, batch) == count
            self.model.append("customers", rows.to_pylist(), model_keys(batch))

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, keys=KEYS)
        def delete(self, stream, keys):
            self.store.delete(stream, keys_of(*keys))
            self.model.delete(stream, model_keys(keys_of(*keys)))

        @precondition(lambda self: backend == "lsm" and not self.is_committed)
        @rule()
        def seal(self):
            self.store._memtables.seal()

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, low=BOUNDS, high=BOUNDS)
        def delete_range(self, stream, low, high):
            self.store.delete_range(stream, low=low, high=high)
            self.model.delete_range(stream, low, high)

        @precondition(lambda self: not self.is_committed)
        @rule(stream=STREAM_NAMES, prefix=BOUNDS)
        def delete_prefix(self, stream, prefix):
            self.store.delete_range(stream, prefix=prefix)
            self.model.delete_range(stream, prefix=prefix)

        @rule(stream=STREAM_NAMES, keys=KEYS, max_bytes=st.sampled_from([100, 5000, 1 << 20]))
        def probe(self, stream, keys, max_bytes):
            batch = keys_of(*keys)
            probe = self.store.probe(stream, batch)
            expected = self.model.probe(stream, model_keys(batch))
            assert probe.counts.tolist() == [len(rows) for rows in expected]
            found = fetched(probe, np.arange(len(keys)), max_bytes)
            assert found == {i: rows for i, rows in enumerate(expected) if rows}
            assert self.store.exists(stream, batch).tolist() == [bool(rows) for rows in expected]

        @rule(stream=STREAM_NAMES)
        def scan(self, stream):
            # By all of a row: those of one id may differ, under keys that the model does not order.
            found = sorted(scanned(self.store, stream, 5000), key=str)
            assert found == sorted(self.model.scan(stream), key=str)

        @rule(
            stream=STREAM_NAMES,
            low=BOUNDS,
            high=BOUNDS,
            reverse=st.booleans(),
            max_bytes=st.sampled_from([100, 1 << 20]),
        )
        def iterate(self, stream, low, high, reverse, max_bytes):
            found = iterated(
                self.store, stream, low=low, high=high, reverse=reverse, max_bytes=max_bytes
            )
            assert found == self.model.iterate(stream, low, high, reverse=reverse)

        @rule(stream=STREAM_NAMES, prefix=BOUNDS.filter(bool), reverse=st.booleans())
        def iterate_prefix(self, stream, prefix, reverse):
            found = iterated(self.store, stream, prefix=prefix, reverse=reverse)
            assert found == self.model.iterate(stream, prefix=prefix, reverse=reverse)

        @rule()
        def take_snapshot(self):
            if len(self.snapshots) == 3:
                self.snapshots.pop(0)[0].close()
            self.snapshots.append((self.store.snapshot(), self.model.copy()))

        @precondition(lambda self: self.snapshots)
        @rule(stream=STREAM_NAMES, keys=KEYS, pick=st.integers(0, 2), reverse=st.booleans())
        def read_snapshot(self, stream, keys, pick, reverse):
            snapshot, model = self.snapshots[pick % len(self.snapshots)]
            found = iterated(snapshot, stream, reverse=reverse, max_bytes=5000)
            assert found == model.iterate(stream, reverse=reverse)
            batch = keys_of(*keys)
            probe = snapshot.probe(stream, batch)
            expected = model.probe(stream, model_keys(batch))
            found = fetched(probe, np.arange(len(keys)), 5000)
            assert found == {i: rows for i, rows in enumerate(expected) if rows}

        @precondition(lambda self: not self.is_committed)
        @rule()
        def commit(self):
            self.committed.append((self.store.commit(), self.model.copy()))
            self.is_committed = True

        @rule(pick=st.integers(0, 3), options=OPTIONS)
        def reopen(self, pick, options):
            self.store.close()
            self.snapshots.clear()
            pointer, model = self.committed[-1 - min(pick, len(self.committed) - 1)]
            self.model = model.copy()
            self.open_at(pointer, options)

        @invariant()
        def stays_under_the_cap(self):
            if self.store is not None:
                assert self.store.stats().memory_bytes <= self.options.memory_bytes

        def teardown(self):
            if self.store is not None:
                self.store.close()
            self.directory.cleanup()

    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    return Machine.TestCase


def lowest_of(keys):
    """A bound that some of the keys are below; all of them if there is none to choose."""
    first = next((key for key in keys if key is not None), 8)
    return first if isinstance(first, tuple) else (first,)


def rows_of(stream, numbers):
    if stream == "customers":
        return customers(*numbers)
    rows = [{"id": n, "price": None, "day": None} for n in numbers]
    return pa.RecordBatch.from_pylist(rows, schema=RETURNS.rows)


def model_keys(batch):
    return [tuple(row.values()) for row in batch.to_pylist()]
