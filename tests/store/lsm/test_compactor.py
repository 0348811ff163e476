"""Merges that are paid for slice by slice, by the appends that come meanwhile."""

import dataclasses
import os

import numpy as np
import pyarrow as pa
import pytest

from lsmstate.lsm.compaction_picker import Task, pick
from lsmstate.lsm.jobs import EVERYTHING
from lsmstate.lsm.store import LsmStore
from lsmstate.options import Options
from lsmstate.process.background_worker import SLICE_BYTES
from lsmstate.store import StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("v", pa.int64()), ("text", pa.string())])
STREAM = StreamSchema("s", KEY, ROWS)
OPTIONS = Options(memory_bytes=16 << 20, memtable_bytes=512 << 10, background=False)
BATCH = 200


def batch(number):
    rng = np.random.default_rng(number)
    keys = pa.record_batch([pa.array(rng.integers(0, 3000, BATCH))], schema=KEY)
    values = pa.array(np.arange(number * BATCH, (number + 1) * BATCH))
    texts = pa.array([f"some text of row {v} in batch {number}" * 3 for v in range(BATCH)])
    return pa.record_batch([values, texts], schema=ROWS), keys


def opened(directory):
    return LsmStore.open(str(directory), [STREAM], options=OPTIONS)


def append_until(store, wanted, first=0):
    """Append batches until ``wanted(store)``; how many there are now."""
    for number in range(first, first + 2000):
        store.append("s", *batch(number))
        if wanted(store):
            return number + 1
    raise AssertionError("it never came about")


def under_way(store):
    """A merge has begun to write, and is not done."""
    return store._runs._merge is not None and bool(store._runs._merge.names)


def values(store):
    found = np.concatenate([p.column(0).to_numpy() for p in store.scan("s", 1 << 18)])
    return np.sort(found).tolist()


def test_appends_return_while_a_merge_is_under_way(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, under_way)
        assert values(store) == list(range(count * BATCH)), "a half-done merge shows"
        before = store.stats().counters["merges"]
        more = 0
        while store.stats().counters["merges"] == before:
            store.append("s", *batch(count + more))
            more += 1
        assert more > 1, "one append paid for the whole merge"
        assert values(store) == list(range((count + more) * BATCH))
        # The next merge may be under way by now, and be paid for over the runs that come meanwhile.
        assert store.stats().counters["runs"] <= OPTIONS.most_runs
        store.check()


def test_compact_ends_what_is_under_way_and_due(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, under_way)
        store.compact()
        assert store._runs._merge is None
        assert pick(store._runs.version.runs, OPTIONS) is None
        on_disk = sum(file.stat().st_size for file in tmp_path.glob("*.sst"))
        assert on_disk == store.stats().disk_bytes, "files that were merged away are still there"
        assert values(store) == list(range(count * BATCH))


def test_compact_deletes_files_of_which_nothing_is_left(tmp_path):
    with LsmStore.open(
        str(tmp_path), [STREAM], options=dataclasses.replace(OPTIONS, fanout=2)
    ) as store:
        store.append("s", *batch(0))
        store.commit()
        store.delete("s", batch(0)[1])
        store.commit()
        store.compact()
        assert store.stats().counters["runs"] == 0
        assert store.stats().disk_bytes == 0
        # The commit's own file holds the manifest.
        assert len(list(tmp_path.glob("*.sst"))) == 1


DELETING = {
    "keys": lambda store, numbers: store.delete("s", numbered(numbers)),
    "a range": lambda store, numbers: store.delete_range("s", low=numbers[0], high=numbers[-1] + 1),
    "put": lambda store, numbers: store.put("s", tall(numbers, 0), numbered(numbers)),
}


def numbered(numbers):
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=KEY)


def tall(numbers, text_bytes=600):
    """A row a key, whose text does not compress to less than half."""
    texts = pa.array([os.urandom(text_bytes // 2).hex() for _ in numbers])
    return pa.record_batch([pa.array(numbers, pa.int64()), texts], schema=ROWS)


def size_of(directory):
    return sum(file.stat().st_size for file in directory.iterdir())


@pytest.mark.parametrize("merging", ["lazy", "leveled", "tiered"])
@pytest.mark.parametrize("deleting", DELETING)
def test_what_was_deleted_is_freed(tmp_path, merging, deleting):
    """By itself where it was most of all there was, by ``compact`` however little it was."""
    delete, options = DELETING[deleting], dataclasses.replace(OPTIONS, merging=merging)
    with LsmStore.open(str(tmp_path), [STREAM], options=options) as store:
        for first in range(0, 5000, 1000):
            numbers = range(first, first + 1000)
            store.append("s", tall(numbers), numbered(numbers))
        store.compact()
        full = size_of(tmp_path)
        delete(store, range(4500))
        store.commit()
        later = range(7000, 7700)  # by an eighth of what there was, which pays for the merge
        store.append("s", tall(later), numbered(later))
        store.commit()
        before = size_of(tmp_path)
        assert before < full / 2
        delete(store, range(4600, 4850))
        store.compact()
        assert size_of(tmp_path) < before * 0.85
        assert [run.tombstones for run in store._runs.version.runs] == [0]
        deleted = [*range(4500), *range(4600, 4850)]
        kept = (
            set(range(5000)) - set(deleted) | set(later) | set(deleted if deleting == "put" else ())
        )
        assert values(store) == sorted(kept)
        store.check()


def test_a_commit_does_not_wait_for_a_merge_and_keeps_its_files(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, under_way)
        store.commit()
        assert under_way(store)
        for more in range(150):
            store.append("s", *batch(count + more))
        assert store.stats().counters["merges"] > 0
        store.commit()
        store.check()
    with opened(tmp_path) as store:
        assert values(store) == list(range((count + 150) * BATCH))


def test_closing_gives_a_merge_up_and_deletes_its_files(tmp_path):
    with opened(tmp_path) as store:
        count = append_until(store, under_way)
        names = list(store._runs._merge.names)
    assert not set(names) & set(os.listdir(tmp_path))
    with opened(tmp_path) as store:
        assert values(store) == list(range(count * BATCH))


def test_a_killed_merge_leaves_files_that_the_next_commit_deletes(tmp_path):
    child = os.fork()
    if child == 0:
        store = opened(tmp_path)
        append_until(store, under_way)
        (tmp_path / "orphans").write_text("\n".join(store._runs._merge.names))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    orphans = (tmp_path / "orphans").read_text().split()
    assert set(orphans) <= set(os.listdir(tmp_path))
    with opened(tmp_path) as store:
        before = values(store)
        assert before == list(range(len(before)))
        assert len(before) > BATCH
        store.append("s", *batch(99_999))
        store.commit()
    assert not set(orphans) & set(os.listdir(tmp_path))


def test_an_error_in_a_merge_is_raised_and_loses_nothing(tmp_path):
    from lsmstate.cython_ext.base.file import set_fault_hook

    store = opened(tmp_path)
    count = append_until(store, under_way)
    mine = os.path.join(str(tmp_path), store._runs._merge.names[-1])

    def fail(operation, path, offset, size):
        if operation == "append" and path == mine:
            raise OSError(28, "No space left on device", path)

    set_fault_hook(fail)
    try:
        with pytest.raises(OSError, match="No space left"):
            append_until(store, lambda store: False, first=count)
    finally:
        set_fault_hook(None)
        store.close()
    assert not os.path.exists(mine)
    with opened(tmp_path) as store:
        found = values(store)
        assert found[: count * BATCH] == list(range(count * BATCH))
        store.check()


def test_writes_that_lie_more_than_four_billion_apart_are_merged(tmp_path):
    """A file counts its rows' writes from the first one, with 32 bits: the oldest rows count as
    of a later one."""
    with opened(tmp_path) as store:
        for number in range(4):
            store.append("s", *batch(number))
            store.commit()
            store._sequence += 3 << 30
            store._writes.replay_from = (store._sequence + 1, 0)
            store._runs._committed = None
            store.commit()
        store.compact()
        (run,) = store._runs.version.runs
        assert run.files[-1].max_sequence > 9 << 30
        assert values(store) == list(range(4 * BATCH))
        store.check()
        store.append("s", *batch(4))
    with opened(tmp_path) as store:
        store.compact()
        assert values(store) == list(range(5 * BATCH))
        store.check()


def test_a_merge_pauses_in_the_middle_of_a_key_with_many_rows(tmp_path):
    """Else an append would wait for all rows of a hot key at once."""
    with opened(tmp_path) as store:
        rows = BATCH * 200
        for number in range(200):
            values_of, _ = batch(number)
            store.append("s", values_of, pa.record_batch([pa.array([1] * BATCH)], schema=KEY))
            if number % 50 == 49:
                store.flush()
        store._runs._begin(Task(0, len(store._runs.version.runs), 1), EVERYTHING)
        merge, slices = store._runs._merge, 1
        while not merge.step(1):
            slices += 1
        store._runs._step(1)
        assert store.stats().counters["runs"] == 1
        assert merge.total_bytes > 4 * SLICE_BYTES
        assert slices >= merge.total_bytes // SLICE_BYTES
        assert values(store) == list(range(rows))
        store.check()
