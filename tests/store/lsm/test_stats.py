"""What stats() says, held against what a store was made to do."""

import json
import time

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.stats import CacheStats, FilterStats, PauseRecorder, PauseStats, WriteStats
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("people", KEY, ROWS)
OPTIONS = Options(memory_bytes=8 * MIB, background=False)


def keys(numbers):
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=KEY)


def append(store, numbers):
    texts = pa.array([f"person {i} " * 4 for i in numbers])
    rows = pa.record_batch([pa.array(numbers, pa.int64()), texts], schema=ROWS)
    store.append("people", rows, keys(numbers))


@pytest.fixture
def store(tmp_path):
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        yield store


def test_a_new_store_has_done_nothing(store):
    stats = store.stats()
    assert (stats.probes.keys, stats.filters.checks, stats.writes.appended_rows) == (0, 0, 0)
    assert (stats.probes.runs_per_key, stats.filters.usefulness) == (0.0, 0.0)
    assert stats.memory_limit_bytes == 8 * MIB
    assert stats.memory_bytes == sum(stats.memory.values())


def test_filters_and_runs_visited_by_a_probe(store):
    for start in (0, 1):
        append(store, range(start, 20_000, 4))
        store.commit()
    assert store.stats().counters["runs"] == 2
    probe = store.probe("people", keys(range(0, 20_000, 2)))
    assert int(probe.counts.sum()) == 5000
    stats = store.stats()
    # Each of 10,000 keys lies in the range of both runs; a key behind a run's last is not asked.
    assert 19_998 <= stats.filters.checks <= 20_000
    assert stats.probes.keys == 10_000
    assert stats.probes.runs_visited == stats.filters.checks
    assert stats.probes.runs_searched == stats.filters.checks - stats.filters.negatives
    assert stats.probes.runs_searched == 5000 + stats.filters.false_positives
    assert stats.filters.usefulness > 0.97  # at 10 bits a key
    assert 0.5 <= stats.probes.runs_per_key < 0.55


def test_without_filters_every_run_is_searched(tmp_path):
    options = Options(memory_bytes=8 * MIB, filter_bits_per_key=0)
    with LsmStore.open(str(tmp_path), [STREAM], options=options) as store:
        append(store, range(0, 1000, 2))
        store.commit()
        store.probe("people", keys(range(999)))
        stats = store.stats()
    assert stats.filters == FilterStats()
    assert (stats.probes.runs_visited, stats.probes.runs_searched) == (999, 999)


def test_writes_are_those_of_the_files(tmp_path):
    # An attempt keeps the files it merged only until its commit; a standalone store's add up.
    with LsmStore.open(str(tmp_path), [STREAM], options=OPTIONS) as store:
        before = store.stats().writes.flushed_bytes
        for start in range(0, 80_000, 10_000):
            append(store, range(start, start + 10_000))
            store.commit()
        store.compact()
        stats = store.stats()
    writes = stats.writes
    assert writes.appended_rows == 80_000
    assert writes.merges == stats.counters["merges"] > 0
    assert writes.merged_bytes > 0
    assert writes.flushed_bytes + writes.merged_bytes == stats.spilled_bytes
    assert writes.appended_bytes > writes.flushed_bytes - before  # compressed
    assert writes.amplification == stats.spilled_bytes / writes.flushed_bytes > 1


def test_the_cache_is_hit_by_the_third_probe(store):
    append(store, range(1000))
    store.commit()
    seen = [store.stats().cache]
    for _ in range(3):  # rows are kept from the second time on
        probe = store.probe("people", keys(range(1000)))
        assert sum(m.rows.num_rows for m in probe.fetch(np.arange(1000), 1 << 20)) == 1000
        seen.append(store.stats().cache)
    before, first, second, third = seen
    assert first.misses > before.misses  # the process's counters: other stores were open before
    assert third.misses == second.misses
    assert third.hits > second.hits
    assert third.hit_rate == third.hits / (third.hits + third.misses)


def test_what_an_append_waits_for_is_counted(store):
    rows = range(40_000)
    for _ in range(4):
        append(store, rows)  # larger than the memtable: each one flushes
    store.commit()
    pauses = store.stats().append_pauses
    assert pauses.count >= 1
    assert 0 < pauses.longest_seconds <= pauses.total_seconds
    assert store.stats().commit_pauses.count >= 1


def test_pauses_add_up_and_short_ones_are_none():
    recorder = PauseRecorder()
    recorder.add(0.0001)
    assert recorder.stats() == PauseStats()
    recorder.add(0.25)
    recorder.add(0.5)
    assert recorder.stats() == PauseStats(2, 0.75, 0.5)
    with recorder.measured():
        time.sleep(0.002)
    assert recorder.stats().count == 3


def test_everything_goes_into_json(store):
    append(store, range(10))
    found = json.loads(json.dumps(store.stats().as_dict()))
    assert found["writes"]["appended_rows"] == 10
    assert found["memory_bytes"] == sum(found["memory"].values())
    assert found["cache_hit_rate"] == CacheStats(**found["cache"]).hit_rate
    assert found["write_amplification"] == WriteStats(**found["writes"]).amplification
