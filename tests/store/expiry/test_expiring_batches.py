"""Streams with expiry, and batches that are written in parts: all of one is there, or nothing."""

import numpy as np
import pyarrow as pa
import pytest

from lsmstate import opening as backends
from lsmstate.errors import InvalidArgumentError, MemoryLimitError
from lsmstate.expiry_rules import Expiry
from lsmstate.lsm.store import LsmStore
from lsmstate.options import MIB, Options
from lsmstate.store import Mutation, StreamSchema
from lsmstate.tools.inspection import find_states
from lsmstate.tools.rows import entries_of
from support.expiring_cases import BACKENDS, KEY, all_ids, keys_of
from support.sample_streams import scanned

ROWS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("at", pa.int64()),
        pa.field("text", pa.string(), nullable=False),
    ]
)


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def opened(directory, backend, rows=ROWS, memory_bytes=8 * MIB):
    stream = StreamSchema("timed", KEY, rows, expiry=Expiry("at", 100))
    options = Options(memory_bytes=memory_bytes)
    return backends.open_store(str(directory), (stream,), backend=backend, options=options)


def batch(count, at=0, last="x" * 1000):
    """(rows, keys): about a kilobyte a row, and the last one's text."""
    texts = pa.array(["x" * 1000] * (count - 1) + [last])
    numbers = pa.array(np.arange(count))
    rows = pa.record_batch([numbers, pa.array(np.full(count, at)), texts], schema=ROWS)
    return rows, pa.record_batch([numbers], schema=KEY)


def test_a_batch_with_a_bad_row_at_its_end_is_refused_in_whole(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(3))
        for write in (store.append, store.retract):
            with pytest.raises(InvalidArgumentError, match="nullable"):
                write("timed", *batch(2000, last=None))
        assert all_ids(store) == [0, 1, 2]


def test_a_batch_for_which_there_is_no_memory_is_refused_in_whole(tmp_path):
    with opened(tmp_path, "memory") as store:
        store.append("timed", *batch(5000))
        with pytest.raises(MemoryLimitError, match="cannot spill"):
            store.append("timed", *batch(5000))
        assert len(all_ids(store)) == 5000
        assert store.append("timed", *batch(10)) == 10


def test_a_batch_with_a_row_too_large_inside_is_refused_in_whole(tmp_path):
    """Booleans are bits in lists, and bytes in rows."""
    schema = pa.schema({"at": pa.int64(), "bits": pa.list_(pa.bool_())})
    bits = pa.array([[True] * 1000, [True] * 1_000_000, [True] * 3_000_000])
    rows = pa.record_batch([pa.array([0, 0, 0]), bits], schema=schema)
    with opened(tmp_path, "lsm", schema) as store:
        with pytest.raises(MemoryLimitError, match="quarter"):
            store.append("timed", rows, keys_of(1, 2, 3))
        assert scanned(store, "timed") == []


def test_large_batches_are_retracted_in_parts(tmp_path, backend):
    with opened(tmp_path, backend, memory_bytes=16 * MIB) as store:
        rows, keys = batch(3000)
        assert rows.nbytes > 16 * MIB // 8
        assert store.append("timed", rows, keys) == 3000
        assert store.retract("timed", rows.slice(5), keys.slice(5)) == 2995
        assert all_ids(store) == [0, 1, 2, 3, 4]
        # Those that wait take what comes.
        store.retract("timed", rows, keys)
        store.append("timed", rows, keys)
        assert all_ids(store) == [0, 1, 2, 3, 4]


def test_a_large_retraction_of_what_cannot_wait_is_refused_in_whole(tmp_path, backend):
    """Its time lies out of the buckets; parts before it would have taken their rows."""
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(3))
        far = batch(1, at=10_000)
        store.append("timed", *far)
        # Each once: the second finds no row, since the first has taken it.
        rows, keys = batch(2000)
        rows = pa.concat_batches([far[0], rows, far[0]])
        keys = pa.concat_batches([far[1], keys, far[1]])
        with pytest.raises(InvalidArgumentError, match="cannot wait"):
            store.retract("timed", rows, keys)
        assert all_ids(store) == [0, 0, 1, 2]
        assert store.retract("timed", rows.slice(0, 2001), keys.slice(0, 2001)) == 2001
        assert all_ids(store) == []


def test_many_keys_are_deleted_in_parts(tmp_path):
    count = 200_000
    keys = pa.record_batch([pa.array(np.arange(count))], schema=KEY)
    with opened(tmp_path, "lsm") as store:
        store.append("timed", *batch(3))
        store.delete("timed", keys)
        assert all_ids(store) == []
        assert store.stats().peak_memory_bytes <= 8 * MIB


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int8(), pa.string_view()),
        pa.list_(pa.binary_view()),
    ],
    ids=str,
)
def test_views_and_dictionaries_expire(tmp_path, backend, kind):
    """Arrow takes no rows from views, and rows that are moved are of plain types."""
    schema = pa.schema({"id": pa.int64(), "at": pa.int64(), "v": kind})
    if pa.types.is_dictionary(kind):
        values = pa.array(["a", "b" * 50], kind.value_type)
        column = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 10, pa.int8()), values)
    elif pa.types.is_list(kind):
        column = pa.array([[b"a", b"b" * 50]] * 20, kind)
    else:
        column = pa.array(["a", "b" * 50] * 10, kind)
    numbers = pa.array(np.arange(20))
    rows = pa.record_batch([numbers, pa.array(np.arange(20) * 50), column], schema=schema)
    keys = pa.record_batch([numbers], schema=KEY)
    with opened(tmp_path, backend, schema) as store:
        assert store.append("timed", rows, keys) == 20  # some of them out of the buckets
        store.advance("timed", 400)
        assert all_ids(store) == list(range(7, 20))
        assert store.put("timed", rows.slice(18), keys.slice(18)) == 2
        assert store.retract("timed", rows.slice(9, 5), keys.slice(9, 5)) == 5
        store.advance("timed", 800)
        left = rows.slice(15).to_pylist()
        assert [row for piece in store.iterate("timed") for row in piece.rows.to_pylist()] == left
        # What a store gives it takes.
        found = store.get_many("timed", keys)
        assert store.put("timed", found.rows, keys.take(pa.array(found.positions))) == 5
        assert [row for piece in store.iterate("timed") for row in piece.rows.to_pylist()] == left


@pytest.mark.parametrize("background", [False, True])
def test_keys_that_all_slots_share_count_once(tmp_path, background):
    """A put deletes the keys in each slot: ten writes with the same keys."""
    names = pa.array([f"{i:036d}" for i in range(20_000)])
    keys = pa.record_batch([names], schema=pa.schema({"k": pa.string()}))
    rows = pa.record_batch({"at": pa.array(np.arange(20_000) % 90)})
    stream = StreamSchema("timed", keys.schema, rows.schema, expiry=Expiry("at", 100))
    options = Options(memory_bytes=12 * MIB, background=background)
    with backends.open_store(str(tmp_path), (stream,), options=options) as store:
        store.append("timed", rows, keys)
        assert store.put("timed", rows, keys) == 20_000
        assert sum(piece.num_rows for piece in store.scan("timed")) == 20_000
        store.write([Mutation("delete", "timed", keys)])
        assert sum(piece.num_rows for piece in store.scan("timed")) == 0


@pytest.mark.parametrize("fails_again", [False, True])
def test_a_write_that_fails_in_an_unfinished_move_doubles_no_rows(
    tmp_path, monkeypatch, fails_again
):
    write, left = LsmStore.write, [-1]  # appends until one fails; less than 0: none does

    def failing(store, mutations):
        left[0] -= any(mutation.kind == "append" for mutation in mutations)
        if left[0] == 0:
            raise RuntimeError("no more")
        return write(store, mutations)

    monkeypatch.setattr(LsmStore, "write", failing)
    with opened(tmp_path, "lsm", memory_bytes=32 * MIB) as store:
        store.append("timed", *batch(1))  # the ring is around it
        store.append("timed", *batch(1500, at=1000))
        left[0] = 3  # two pieces are moved before
        with pytest.raises(RuntimeError, match="no more"):
            store.advance("timed", 1000)
        assert store._lanes["timed"].state.moving is not None
        other = Mutation("delete", "timed", keys_of(-1))
        if fails_again:
            left[0] = 1
            with pytest.raises(RuntimeError, match="no more"):
                store.write([other])
        left[0] = -1
        store.write([other])
        assert store._lanes["timed"].state.moving is None
        assert all_ids(store) == list(range(1500))


def test_a_commit_completes_a_move_that_readers_could_not(tmp_path, monkeypatch):
    write, left = LsmStore.write, [-1]

    def failing(store, mutations):
        left[0] -= any(mutation.kind == "append" for mutation in mutations)
        if left[0] == 0:
            raise RuntimeError("no more")
        return write(store, mutations)

    monkeypatch.setattr(LsmStore, "write", failing)
    with opened(tmp_path, "lsm", memory_bytes=32 * MIB) as store:
        store.append("timed", *batch(1))
        store.append("timed", *batch(1500, at=1000))
        left[0] = 3
        with pytest.raises(RuntimeError, match="no more"):
            store.advance("timed", 1000)
        left[0] = -1
        store.commit()
        (state,) = find_states(str(tmp_path))
        assert sum(each.rows.num_rows for each in entries_of(state, "timed", 9999)) == 1500


def test_rows_of_almost_a_quarter_of_the_cap_are_moved(tmp_path, backend):
    rows, keys = batch(1000, at=1000)
    texts = ["x" * 100] * 1000
    texts[500] = "x" * (7 * MIB // 4)
    rows = rows.set_column(2, ROWS.field("text"), pa.array(texts))
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(1))  # the ring is around it
        assert store.append("timed", rows, keys) == 1000
        store.advance("timed", 1000)
        assert all_ids(store) == list(range(1000))
        assert store.put("timed", rows.slice(500, 1), keys.slice(500, 1)) == 1
