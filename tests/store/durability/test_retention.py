"""Which files a restart could still need."""

import os
import re
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmstate.lsm import manifest
from lsmstate.lsm.file_names import AttemptFile, parse_attempt_file
from lsmstate.lsm.retained_files import collectable, kept_batches
from lsmstate.lsm.store import LsmStore
from lsmstate.memory_backend import store as memory_store
from lsmstate.opening import open_attempt
from lsmstate.options import Options
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
STREAM = StreamSchema("s", KEY, ROWS)


def test_the_newest_batch_at_or_below_the_horizon_is_kept():
    assert kept_batches({1, 5, 6, 9}, current_batch=9, retained=3) == {6, 9}
    assert kept_batches({1, 5}, current_batch=900, retained=3) == {5}
    assert kept_batches(set(), current_batch=3, retained=100) == frozenset()


@given(
    st.sets(st.integers(0, 60), min_size=1),
    st.integers(1, 20),
    st.data(),
)
def test_every_batch_a_restart_can_go_back_to_finds_its_pointer(batches, retained, data):
    current = max(batches)
    kept = kept_batches(batches, current, retained)
    back_to = data.draw(st.integers(max(0, current - retained), current))
    pointers = [batch for batch in batches if batch <= back_to]
    if pointers:
        assert max(pointers) in kept


def test_nothing_of_a_kept_or_younger_batch_is_collected():
    files = [AttemptFile("run", batch, "a", 1) for batch in range(10)]
    names = collectable(files, {files[2].name}, kept={4, 7}, current_batch=9)
    assert names == [files[i].name for i in (0, 1, 3)]


def run_batches(directory, first, last, pointer, retained, rows=40):
    """One attempt a batch; every pointer, by batch."""
    pointers = {}
    for batch in range(first, last):
        store = LsmStore.open_attempt(
            str(directory),
            [STREAM],
            pointer=pointer,
            batch_id=batch,
            attempt_id="a",
            options=Options(memory_bytes=8 << 20, retained_batches=retained),
        )
        keys = pa.record_batch([pa.array(range(rows), pa.int64())], schema=KEY)
        values = pa.array([batch] * rows, pa.int64())
        store.append("s", pa.record_batch([keys.column(0), values], schema=ROWS), keys)
        pointer = pointers[batch] = store.commit()
        store.close()
    return pointers


def rows_at(directory, pointer):
    store = LsmStore.open_attempt(
        str(directory),
        [STREAM],
        pointer=pointer,
        batch_id=10_000,
        attempt_id="reader",
        options=Options(memory_bytes=8 << 20),
    )
    rows = sum(piece.num_rows for piece in store.scan("s"))
    store.close()
    return rows


def test_old_files_go_and_every_retained_pointer_still_opens(tmp_path):
    pointers = run_batches(tmp_path, 0, 60, None, retained=8)
    kept = {batch: pointer for batch, pointer in pointers.items() if batch > 59 - 8}
    for batch, pointer in kept.items():
        assert rows_at(tmp_path, pointer) == 40 * (batch + 1)
    batches = {parse_attempt_file(name).batch_id for name in os.listdir(tmp_path)}
    assert 3 not in batches, "files of a long-gone batch that nothing names were never collected"
    assert len(os.listdir(tmp_path)) < 60


def test_an_idle_buckets_pointer_outlives_hundreds_of_batches(tmp_path):
    first = run_batches(tmp_path, 0, 12, None, retained=4)[11]
    later = run_batches(tmp_path, 500, 503, first, retained=4)
    assert rows_at(tmp_path, first) == 40 * 12
    assert rows_at(tmp_path, later[502]) == 40 * 15


def test_a_zombies_commit_of_a_retained_batch_stays(tmp_path):
    pointers = run_batches(tmp_path, 0, 10, None, retained=6)
    zombie = run_batches(tmp_path, 9, 10, pointers[8], retained=6)[9]
    run_batches(tmp_path, 10, 14, pointers[9], retained=6)
    assert rows_at(tmp_path, zombie) == 40 * 10
    assert rows_at(tmp_path, pointers[9]) == 40 * 10


def test_a_file_that_was_never_sealed_does_not_stop_the_collection(tmp_path):
    pointers = run_batches(tmp_path, 0, 10, None, retained=4)
    torn = tmp_path / AttemptFile("commit", 9, "dead", 1).name
    torn.write_bytes(b"LSMSTATE torn")
    pointers |= run_batches(tmp_path, 10, 30, pointers[9], retained=4)
    assert rows_at(tmp_path, pointers[29]) == 40 * 30
    assert not torn.exists()


def test_a_commit_that_was_never_accepted_does_not_stand_in_for_the_one_that_was(tmp_path):
    """Batch 6 failed after its commit and went without this bucket when it was repeated."""
    first = run_batches(tmp_path, 0, 4, None, retained=4)[3]
    run_batches(tmp_path, 6, 7, first, retained=4)
    later = run_batches(tmp_path, 500, 503, first, retained=4)
    assert rows_at(tmp_path, first) == 40 * 4
    assert rows_at(tmp_path, later[502]) == 40 * 7


def test_an_abandoned_future_neither_replaces_the_past_nor_stays_for_ever(tmp_path):
    """The query was set back to batch 6 after batch 19 and went on another way."""
    past = run_batches(tmp_path, 0, 7, None, retained=30)
    future = run_batches(tmp_path, 7, 20, past[6], retained=30)
    again = run_batches(tmp_path, 25, 30, past[6], retained=8)
    assert rows_at(tmp_path, past[6]) == 40 * 7
    assert rows_at(tmp_path, again[27]) == 40 * 10
    run_batches(tmp_path, 50, 60, again[29], retained=8)
    left = set(os.listdir(tmp_path))
    assert not left & {pointer.split(":")[0] for pointer in future.values()}


def test_a_bucket_without_rows_in_the_batches_of_the_collection_is_collected_too(tmp_path):
    pointer = None
    for batch in range(1, 80, 2):
        pointer = run_batches(tmp_path, batch, batch + 1, pointer, retained=8)[batch]
    assert min(parse_attempt_file(name).batch_id for name in os.listdir(tmp_path)) > 40


def test_a_commit_of_a_later_release_stops_the_collection_and_not_the_query(
    tmp_path, monkeypatch, caplog
):
    """A query that was set back to before an upgrade, and goes on with the release it had."""
    pointers = run_batches(tmp_path, 0, 10, None, retained=4)
    monkeypatch.setattr(manifest, "_format_of", lambda version, streams: 3)
    run_batches(tmp_path, 11, 12, pointers[9], retained=400)
    monkeypatch.undo()
    before = set(os.listdir(tmp_path))
    pointers |= run_batches(tmp_path, 10, 14, pointers[9], retained=4)
    assert before < set(os.listdir(tmp_path))
    assert "manifest format 3, this release reads up to 2" in caplog.text
    assert rows_at(tmp_path, pointers[13]) == 40 * 14
    pointers |= run_batches(tmp_path, 14, 40, pointers[13], retained=4)
    assert not before & set(os.listdir(tmp_path)), "its commit is too old for any restart now"


def test_options_refuse_to_retain_nothing():
    with pytest.raises(ValueError, match="retained_batches"):
        Options(retained_batches=0)


def attempt_of(backend, directory, pointer, batch):
    return open_attempt(
        str(directory),
        [STREAM],
        backend=backend,
        pointer=pointer,
        batch_id=batch,
        attempt_id="a",
        options=Options(memory_bytes=8 << 20, retained_batches=RETAINED),
    )


def rows_of(batch):
    values = [[batch * 3, batch * 3 + 1, -1], [batch] * 3]
    rows = pa.RecordBatch.from_arrays([pa.array(v, pa.int64()) for v in values], schema=ROWS)
    return rows, rows.select(["k"])


def write_batch(backend, directory, pointer, batch):
    with attempt_of(backend, directory, pointer, batch) as store:
        store.append("s", *rows_of(batch))
        return store.commit()


def batches_at(backend, directory, pointer, batch):
    """Which micro-batches a state has, by a store that commits nothing."""
    with attempt_of(backend, directory, pointer, batch) as store:
        return Counter(v for piece in store.scan("s") for v in piece.column("v").to_pylist())


RETAINED = 4


def killed_attempt(backend, directory, pointer, batch):
    """Under the names that it had begun something stays behind."""
    before = set(directory.iterdir())
    with attempt_of(backend, directory, pointer, batch) as store:
        store.append("s", *rows_of(99))
        begun = set(directory.iterdir()) - before
        assert begun
        for path in begun:
            left = directory / re.sub("[0-9a-f]{32}", uuid.uuid4().hex, path.name)
            if path.is_dir():
                left.mkdir()
                left = left / "000009.sst"
            left.write_bytes(b"half")


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_other_backends_keep_what_a_restart_needs_and_little_more(tmp_path, backend):
    """Attempts that are killed, attempts that nobody took, and a query that is set back."""
    pointers, left = {}, []
    for batch in range(26):
        newest = pointers[max(pointers)] if pointers else None
        if batch % 4 == 0:
            killed_attempt(backend, tmp_path, newest, batch)
        write_batch(backend, tmp_path, newest, batch)
        if batch == 18:
            del pointers[15], pointers[16], pointers[17]
            continue
        pointers[batch] = write_batch(backend, tmp_path, newest, batch)
        for kept in kept_batches(pointers, batch, RETAINED) if batch % 6 == 1 else ():
            memory_store._kept.clear()
            found = batches_at(backend, tmp_path, pointers[kept], batch)
            assert found == dict.fromkeys((b for b in pointers if b <= kept), 3)
        left.append(len(os.listdir(tmp_path)))
    assert max(left) <= 6 * RETAINED
    assert left[-1] <= max(left[:14]), "more and more stays"


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_other_backends_write_what_is_new_and_say_what_they_wrote(tmp_path, backend):
    pointer, flushed, merged, looked = None, 0, 0, 0
    for batch in range(24):
        with attempt_of(backend, tmp_path, pointer, batch) as store:
            rows, keys = rows_of(batch)
            store.put("s", rows, keys)
            assert store.probe("s", keys).counts.tolist() == [1, 1, 1]
            pointer = store.commit()
            stats = store.stats()
        flushed, merged = flushed + stats.writes.flushed_bytes, merged + stats.writes.merged_bytes
        looked += stats.cache.hits + stats.cache.misses + stats.filters.checks
        assert stats.writes.flushed_bytes > 0
        assert stats.disk_bytes > 0
    assert 0 < merged < 8 * flushed
    assert (looked > 0) is (backend == "rocksdb"), "tables in memory have neither cache nor filter"
    with attempt_of(backend, tmp_path, pointer, 24) as store:
        assert store.probe("s", rows_of(23)[1]).counts.tolist() == [1, 1, 1]
        assert sum(piece.num_rows for piece in store.scan("s")) == 24 * 2 + 1
