"""Rows of an as-of join that are kept in memory: the same results, within the cap."""

import gc
import random
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsmstate.cython_ext.keys.key_codec import KeyCodec
from lsmstate.cython_ext.keys.key_places import KeyPlaces
from lsmstate.errors import MemoryLimitError
from lsmstate.join import State, asof_join
from lsmstate.joins.local.parts import placed_rows
from lsmstate.process.memory_budget import process_memory
from support.examples import examples

Q = pa.schema([("k", pa.string()), ("t", pa.int64())])
P = pa.schema([("name", pa.string()), ("t", pa.int64()), ("k", pa.string()), ("x", pa.float64())])
KEYS = pa.schema([("k", pa.string())])
pair = st.tuples(st.sampled_from("abcdéx"), st.integers(-3, 3))
pairs = st.lists(pair, max_size=12)
#: More than are looked up together.
many_pairs = st.lists(pair, max_size=50)


def key_places(rows):
    """Rows by key and place, in whatever order they come."""
    encoded = KeyCodec(KEYS).encode(pa.record_batch([[k for k, _ in rows]], schema=KEYS))
    distinct, starts = encoded.distinct()
    places = np.array([place for _, place in rows], np.int64)[encoded.order]
    for start, stop in pairwise(starts):
        places[start:stop].sort()
    return KeyPlaces(distinct, starts, places)


@given(st.lists(pairs, min_size=1, max_size=4), many_pairs, st.booleans())
@settings(deadline=None, max_examples=examples(100))
def test_the_last_place_up_to_a_limit_is_that_of_a_look_at_all(parts, asked, is_merged):
    """Each place is found by its row, alone or after a merge, and in the newest part."""
    found = [key_places(part) for part in parts]
    known = [
        [(k.encode(), place) for k, place in sorted(part, key=lambda r: (r[0].encode(), r[1]))]
        for part in parts
    ]
    if is_merged:
        whole, rows = found[0], known[0]
        for newer, more in zip(found[1:], known[1:], strict=True):
            whole, order = whole.merged(newer)
            rows = rows + more
            if order is not None:
                rows = [rows[at] for at in order]
        assert rows == sorted(rows)
        found, known = [whole], [rows]
    keys = KeyCodec(KEYS).encode(pa.record_batch([[k for k, _ in asked]], schema=KEYS))
    limits = np.array([limit for _, limit in asked], np.int64)
    best = np.zeros(len(asked), np.int64)
    at, source = (np.full(len(asked), -1, np.int64) for _ in range(2))
    for number, each in enumerate(found):
        each.improve(keys, limits, best, at, source, number)
    for i, (k, limit) in enumerate(asked):
        fits = [
            (place, number, row)
            for number, part in enumerate(known)
            for row, (key, place) in enumerate(part)
            if key == k.encode() and place <= limit
        ]
        assert (best[i], source[i], at[i]) == max(fits) if fits else at[i] == -1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="starts of"):
        KeyPlaces(None, np.array([0, 2]), np.array([1]))
    ours = KeyPlaces(None, np.array([0, 1]), np.array([1]))
    four = [np.zeros(2, np.int64) for _ in range(4)]
    with pytest.raises(ValueError, match="keys of another kind"):
        ours.improve(key_places([("a", 1)]).keys, *four, 0)
    with pytest.raises(ValueError, match="limits"):
        ours.improve(None, np.zeros(1, np.int64), *four[1:], 0)
    with pytest.raises(ValueError, match="two kinds"):
        ours.merged(key_places([("a", 1)]))


def made(schema, count, first, rng):
    """Rows whose times go on from ``first``."""
    rows = [
        {"k": f"key {rng.randrange(40)}", "t": first + rng.randrange(500), "name": f"{n}", "x": n}
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def kept_bytes():
    gc.collect()
    return process_memory().budget.usage()["probe"]


def run(memory, batches):
    """The results of each batch, whether rows were kept at its end, and the join's chunks."""
    rng = random.Random(3)
    found, was_kept = [], []
    with asof_join({"q": Q, "p": P}, "q.t >= p.t", by="k", state=State(memory=memory)) as join:
        kept = join.local_join._kept.kept
        for n in range(batches):
            join.process("p", made(P, 900, 500 * n, rng)).close()
            join.process("q", made(Q, 400, 500 * n, rng)).close()
            found.append(sorted(map(str, join.advance(500 * n + 499).rows())))
            was_kept.append(bool(kept.chunks))
            if kept.chunks:
                assert kept.nbytes == sum(chunk.nbytes for chunk in kept.chunks)
                sizes = [len(chunk.places) for chunk in kept.chunks]
                assert all(a >= 2 * b for a, b in pairwise(sizes))
    return found, was_kept


def test_rows_are_kept_after_many_lookups_and_let_go_with_the_join():
    before = kept_bytes()
    expected, was_kept = run("16m", 9)
    assert not any(was_kept)
    with patch.object(placed_rows, "LEAST", 1 << 11):
        found, was_kept = run("16m", 9)
    assert found == expected
    assert was_kept[-1]
    assert kept_bytes() == before


def test_rows_beyond_a_quarter_of_the_cap_are_not_kept():
    rng = random.Random(5)
    with asof_join({"q": Q, "p": P}, "q.t >= p.t", by="k", state=State(memory="8m")) as join:
        kept = join.local_join._kept.kept
        kept._lookups = np.inf
        rows = made(P, 9_000, 0, rng)
        for n in range(3):
            at = [1000 * n] * rows.num_rows
            join.process("p", rows.set_column(1, "t", pa.array(at))).close()
            join.process("q", made(Q, 100, 1000 * n + 1, rng)).close()
            assert join.advance(1000 * n + 600).count() == 100
        assert kept.chunks
        for n in range(12):
            at = [5000 + n] * rows.num_rows
            join.process("p", rows.set_column(1, "t", pa.array(at))).close()
        assert not kept.chunks
        join.process("q", made(Q, 100, 6000, rng)).close()
        assert join.advance(9000).count() == 100


def test_rows_are_let_go_where_a_write_has_no_room():
    with asof_join({"q": Q, "p": P}, "q.t >= p.t", by="k", state=State(memory="8m")) as join:
        rng, kept, store = random.Random(7), join.local_join._kept.kept, join.store
        kept._lookups = np.inf
        for n in range(3):
            join.process("p", made(P, 50, 1000 * n, rng)).close()
            join.process("q", made(Q, 50, 1000 * n + 500, rng)).close()
            assert join.advance(1000 * n + 999).count() > 0
            assert kept.chunks
        write_all, refused = store.write_all, [True]

        def refuse_once(parts):
            if refused.pop() if refused else False:
                raise MemoryLimitError("no memory")
            return write_all(parts)

        with patch.object(store, "write_all", refuse_once):
            join.process("p", made(P, 50, 3000, rng)).close()
        assert not kept.chunks
        join.process("q", made(Q, 50, 3500, rng)).close()
        assert join.advance(4000).count() == 50


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
@pytest.mark.parametrize("columns", [["at"], ["at", "id"]])
def test_streams_whose_columns_key_and_time_do_not_tell(kind, columns):
    """Or tell all of them."""
    streams = {
        "q": pa.schema([("at", pa.int64()), ("id", pa.int64())]),
        "p": pa.schema([("at", kind), ("id", pa.int64())]).empty_table().select(columns).schema,
    }
    with asof_join(streams, "q.at >= p.at") as join:
        join.local_join._kept.kept._lookups = np.inf
        for first in (1, 10):
            rows = {"at": [first, first + 1], "id": [7, 8]}
            join.process("p", {name: rows[name] for name in columns}).close()
            join.process("q", {"at": [first + 1, first + 5], "id": [1, 2]}).close()
            found = join.advance(first + 6).to_table().to_pylist()
            assert [row["q_id"] if len(columns) > 1 else row["id"] for row in found] == [1, 2]
            assert [row["p_at"] for row in found] == [first + 1] * 2
            assert len(columns) < 2 or [row["p_id"] for row in found] == [8, 8]
        assert join.local_join._kept.kept.chunks


@pytest.mark.parametrize("call", ["load", "add"])
def test_rows_that_could_not_be_kept_are_read_from_the_store(call):
    """Neither some of those that were read, nor those that were kept before."""
    calls = []

    def fails_second(self, placed):
        calls.append(placed)
        if len(calls) == 2:
            raise MemoryError("no memory")
        return chunk_of(self, placed)

    chunk_of = placed_rows.PlacedRows._chunk
    with asof_join(
        {"q": Q, "p": P}, "q.t >= p.t", by="k", piece_bytes=4096, state=State(memory="8m")
    ) as join:
        rng, kept = random.Random(9), join.local_join._kept.kept
        join.process("p", made(P, 400, 0, rng)).close()
        join.process("q", made(Q, 100, 500, rng)).close()
        kept._lookups = np.inf
        if call == "add":
            assert join.advance(1000).count() == 100
            assert kept.chunks
            calls.append("load")
        with patch.object(placed_rows.PlacedRows, "_chunk", fails_second):
            if call == "load":
                assert join.advance(1000).count() == 100
            else:
                join.process("p", made(P, 400, 2000, rng)).close()
        assert len(calls) == 2
        assert not kept.is_kept
        join.process("q", made(Q, 100, 5000, rng)).close()
        found = join.advance(9000).to_table()
        assert found.num_rows == 100
        if call == "add":
            assert min(found["p_t"].to_pylist()) >= 2000
