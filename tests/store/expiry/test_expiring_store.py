"""Streams with expiry, over every backend: rows are gone when they are due, and not before."""

import random
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsmstate import opening as backends
from lsmstate.errors import InvalidArgumentError
from lsmstate.expiry_rules import Expiry
from lsmstate.store import KeyBounds, Mutation, RangeBounds, StreamSchema
from support.contract_ranges import read_ranges
from support.examples import examples
from support.expiring_cases import (
    BACKENDS,
    KEY,
    LIFE,
    OPTIONS,
    all_ids,
    batch,
    ids,
    keys_of,
    opened,
)
from support.faults import Faults, faults
from support.sample_streams import STREAMS
from support.store_contract import StateStoreTests


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


class TestContract(StateStoreTests):
    """The whole contract holds for a stream with expiry of which nothing is due."""

    backend = "lsm"
    # Its other process knows the streams without expiry only.
    test_a_commit_in_another_process = None

    def test_streams_come_in_their_order(self, store):
        assert list(store.streams) == ["customers", "returns"]
        assert store.streams["returns"].expiry == Expiry("id", 10**15)

    @staticmethod
    def expiring(streams):
        return [
            StreamSchema(s.name, s.key, s.rows, Expiry("id", 10**15), s.zones)
            if "id" in s.rows.names
            else s
            for s in streams
        ]

    def attempt(self, directory, pointer=None, batch_id=1, attempt_id="a0", streams=STREAMS):
        return super().attempt(directory, pointer, batch_id, attempt_id, self.expiring(streams))

    def owned(self, directory, streams=STREAMS):
        return super().owned(directory, self.expiring(streams))


def test_what_is_due_is_hidden_at_once_from_every_read(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 1000), (1, 2, 1060), (2, 3, 1001), (3, 4, None)))
        store.advance("timed", 1101)  # due: up to 1001
        probe = store.probe("timed", keys_of(1, 2, 3))
        assert probe.counts.tolist() == [1, 0, 1]
        assert store.exists("timed", keys_of(1, 2, 3)).tolist() == [True, False, True]
        (piece,) = probe.fetch(np.array([0, 1, 2]), 1 << 20)
        assert (piece.positions.tolist(), piece.rows.column("id").to_pylist()) == ([0, 2], [2, 4])
        assert all_ids(store) == [2, 4]
        assert [i for _, rows in store.iterate("timed") for i in ids(rows)] == [2, 4]
        assert ids(store.get("timed", (2,))) == []


def test_ranges_of_keys_hide_what_is_due(tmp_path, backend):
    rng = random.Random(7)
    with opened(tmp_path, backend) as store:
        entries = []
        for start in range(0, 600, 40):
            fresh = [
                (rng.randrange(12), start + at, rng.choice([start + rng.randrange(200), None]))
                for at in range(40)
            ]
            store.append("timed", *batch(*fresh))
            entries += fresh
            watermark = start + 90
            store.advance("timed", watermark)
            entries = [e for e in entries if e[2] is None or e[2] + LIFE > watermark]
        low = np.array([rng.randrange(12) for _ in range(30)])
        high = low + rng.randrange(5)
        bounds = RangeBounds(low=low, high=high)
        pairs = list(zip(low.tolist(), high.tolist(), strict=True))
        wanted = [sorted(e[1] for e in entries if a <= e[0] <= b) for a, b in pairs]
        assert store.count_ranges("timed", bounds).tolist() == list(map(len, wanted))
        found = read_ranges(store, "timed", bounds, 30, max_bytes=500)
        assert [sorted(found[row]) for row in range(30)] == wanted
        with store.snapshot() as snapshot:
            # The ends are those of an iteration, which merges the slots by key.
            known = [
                (key, number)
                for keys, rows in store.iterate("timed")
                for key, number in zip(
                    keys.column(0).to_pylist(), rows.column("id").to_pylist(), strict=True
                )
            ]
            for option, place in (("first", 0), ("last", -1)):
                ends = [[n for k, n in known if a <= k <= b][place:][:1] for a, b in pairs]
                found = read_ranges(snapshot, "timed", bounds, 30, max_bytes=500, **{option: True})
                assert [found[row] for row in range(30)] == ends


def test_a_row_is_due_exactly_when_it_has_lived(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 500)))
        store.advance("timed", 599)
        assert all_ids(store) == [1]
        store.advance("timed", 600)
        assert all_ids(store) == []


def test_rows_that_are_due_when_they_arrive_are_not_stored(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.advance("timed", 1000)
        assert store.append("timed", *batch((1, 1, 900), (1, 2, 901), (1, 3, None))) == 2
        assert all_ids(store) == [2, 3]


@pytest.mark.parametrize("life", [0, 1, LIFE, (1 << 63) - 1])
@pytest.mark.parametrize("watermark", [-(1 << 70), -(1 << 63), 0, (1 << 63) - 1, 1 << 70])
def test_times_at_the_ends_of_64_bits(tmp_path, life, watermark):
    times = [-(1 << 63)] * 3 + [1 - (1 << 63), 0, (1 << 63) - 2, (1 << 63) - 1]
    rows = batch(*((1, i, at) for i, at in enumerate(times)))
    left = [i for i, at in enumerate(times) if at + life > watermark]
    for first in (0, 3, len(times) - 1):  # the ring is begun around different times
        with opened(tmp_path / str(first), after=life) as store:
            store.append("timed", rows[0].slice(first, 1), rows[1].slice(first, 1))
            store.append("timed", rows[0].slice(0, first), rows[1].slice(0, first))
            store.append("timed", rows[0].slice(first + 1), rows[1].slice(first + 1))
            store.advance("timed", watermark)
            assert all_ids(store) == left
            store.append("timed", *rows)
            assert all_ids(store) == sorted(2 * left)


def test_a_watermark_that_falls_back_changes_nothing(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.advance("timed", 1000)
        store.advance("timed", 200)
        assert store.append("timed", *batch((1, 1, 500))) == 0


def test_other_streams_are_untouched(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("plain", *batch((1, 1, 0)))
        store.append("timed", *batch((1, 2, 0)))
        store.advance("timed", 10**6)
        assert all_ids(store, "plain") == [1]
        with pytest.raises(InvalidArgumentError, match="'plain' has no expiry"):
            store.advance("plain", 5)
        with pytest.raises(InvalidArgumentError, match="did you mean 'timed'"):
            store.advance("time", 5)


def test_put_delete_and_ranges_reach_every_slot(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        rows = [(k, 10 * k + n, 30 * n) for k in range(6) for n in range(9)]
        store.append("timed", *batch(*rows))
        store.append("timed", *batch((0, 900, None), (1, 901, 10**9), (2, 902, -(10**9))))
        store.delete("timed", keys_of(1))
        assert store.put("timed", *batch((2, 903, 17), (2, 904, 200), (9, 905, None))) == 3
        store.delete_range("timed", low=(4,), high=(6,))
        assert ids(store.get("timed", (1,))) == []
        assert ids(store.get("timed", (2,))) == [903, 904]
        assert ids(store.get("timed", (0,))) == [*range(9), 900]
        assert len(all_ids(store)) == 10 + 9 + 2 + 1
        again, keys = batch((0, 7, 5))
        both = [Mutation("delete", "timed", keys), Mutation("append", "timed", keys, again)]
        assert store.write(both) == 1
        assert ids(store.get("timed", (0,))) == [7]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s, k, r: s.write(5), "mutations=5 is a int"),
        (lambda s, k, r: s.write([("append", "timed", k, r)]), "a tuple; give a Mutation"),
        (lambda s, k, r: s.write([Mutation("append", "timed", k)]), "'append' in stream 'timed'"),
        (lambda s, k, r: s.write([Mutation("add", "timed", k, r)]), "'add' in stream 'timed'"),
        (
            lambda s, k, r: s.write([Mutation("put", "timed", KeyBounds(low=1), r)]),
            "'put' in stream 'timed': give KeyBounds",
        ),
        (lambda s, k, r: s.iterate("timed", low="x"), "of stream 'timed': 'x' is not of the type"),
    ],
)
def test_what_does_not_fit_is_said_of_the_stream_and_not_of_its_slots(tmp_path, call, said):
    with opened(tmp_path) as store:
        rows, keys = batch((1, 1, 1000))
        with pytest.raises(InvalidArgumentError, match=said):
            call(store, keys, rows)
        assert store.write(iter([Mutation("append", "timed", keys, rows)])) == 1
        assert all_ids(store) == [1]


@pytest.mark.parametrize("failing", range(6))
def test_a_range_is_deleted_from_all_slots_or_from_none(tmp_path, failing):
    with opened(tmp_path) as store:
        store.append("timed", *batch(*[(k, k, 30 * k) for k in range(9)]))
    store = opened(tmp_path)
    hook = Faults(failing, operations=("append",))
    with faults(hook):
        try:
            store.delete_range("timed", low=(2,))
        except OSError:
            assert hook.failed == 1
    store.close()
    with opened(tmp_path) as store:
        assert all_ids(store) == ([*range(9)] if hook.failed else [0, 1])


@pytest.mark.parametrize("reverse", [False, True])
def test_iteration_is_in_key_order_over_all_slots(tmp_path, backend, reverse):
    rng = random.Random(3)
    rows = [(rng.randrange(200), i, rng.choice([None, rng.randrange(3000)])) for i in range(3000)]
    with opened(tmp_path, backend, after=2000) as store:
        store.append("timed", *batch(*rows))
        store.advance("timed", 3000)
        alive = [row for row in rows if row[2] is None or row[2] > 1000]
        found = list(store.iterate("timed", low=(20,), reverse=reverse, max_bytes=3000))
        assert len(found) > 5
        keys = [k for piece in found for k in piece.keys.column("k").to_pylist()]
        assert keys == sorted(keys, reverse=reverse)
        assert sorted((k, i) for piece in found for k, i in zip(
            piece.keys.column("k").to_pylist(), piece.rows.column("id").to_pylist(), strict=True
        )) == sorted((k, i) for k, i, _ in alive if k >= 20)  # fmt: skip


def test_fetching_in_small_pieces_finds_the_same(tmp_path, backend):
    rows = [(n % 11, n, (n * 37) % 900) for n in range(2000)]
    with opened(tmp_path, backend, after=800) as store:
        store.append("timed", *batch(*rows))
        store.advance("timed", 1100)
        probe = store.probe("timed", keys_of(*range(12)))
        for size in (1, 500, 20_000, 1 << 20):
            found = {}
            last = -1
            for piece in probe.fetch(np.arange(12), size):
                assert bool(np.all(np.diff(piece.positions) >= 0))
                assert last <= piece.positions[0]
                last = piece.positions[-1]
                for position, i in zip(piece.positions, piece.rows.column("id"), strict=True):
                    found.setdefault(int(position), []).append(i.as_py())
            for k in range(12):
                expected = [i for key, i, at in rows if key == k and at > 300]
                assert sorted(found.get(k, [])) == expected
                assert probe.counts[k] == len(expected)


def test_time_stamps_and_time_zones(tmp_path):
    rows = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin"))])
    expiry = Expiry("at", timedelta(hours=2))
    streams = [StreamSchema("timed", KEY, rows, expiry=expiry)]
    at = datetime.fromisoformat("2026-03-29T00:30:00+00:00")
    with backends.open_store(str(tmp_path), streams, options=OPTIONS) as store:
        values = [{"id": n, "at": at + timedelta(minutes=30 * n)} for n in range(6)]
        batch = pa.RecordBatch.from_pylist(values, schema=rows)
        store.append("timed", batch, keys_of(*range(6)))
        store.advance("timed", at + timedelta(hours=3))
        assert all_ids(store) == [3, 4, 5]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(
                st.tuples(
                    st.integers(0, 4),
                    st.none() | st.integers(0, 900) | st.sampled_from([-(10**12), 10**12]),
                ),
                min_size=1,
                max_size=12,
            ),
        ),
        st.tuples(st.just("advance"), st.integers(0, 1200)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 4), max_size=2)),
        st.tuples(st.just("retract"), st.lists(st.integers(0, 99), max_size=3)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", BACKENDS)
@given(operations=OPERATIONS)
@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_as_the_model_has_it(tmp_path_factory, name, operations):
    directory = tmp_path_factory.mktemp("model")
    alive, horizon, number = {}, None, 0
    store = opened(directory, name)
    try:
        for what, given_ in operations:
            if what == "append":
                rows = []
                for key, at in given_:
                    rows.append((key, number, at))
                    due = horizon is not None and at is not None and at <= horizon
                    if not due:
                        alive[number] = (key, at)
                    number += 1
                store.append("timed", *batch(*rows))
            elif what == "advance":
                horizon = max(given_ - LIFE, horizon if horizon is not None else given_ - LIFE)
                store.advance("timed", given_)
                alive = {
                    i: (key, at) for i, (key, at) in alive.items() if at is None or at > horizon
                }
            elif what == "delete":
                store.delete("timed", keys_of(*given_))
                alive = {i: row for i, row in alive.items() if row[0] not in given_}
            elif what == "retract":
                taken = {sorted(alive)[place % len(alive)] for place in given_ if alive}
                rows, keys = batch(*((alive[i][0], i, alive[i][1]) for i in taken))
                assert store.retract("timed", rows, keys) == len(taken)
                alive = {i: row for i, row in alive.items() if i not in taken}
            else:
                store.commit()
                store.close()
                store = opened(directory, name)
            assert all_ids(store) == sorted(alive)
            counts = store.probe("timed", keys_of(*range(5))).counts.tolist()
            assert counts == [sum(key == k for key, _ in alive.values()) for k in range(5)]
    finally:
        store.close()


def test_rows_of_a_key_come_by_time_bucket_then_in_arrival_order(tmp_path, backend):
    """A bucket is a quarter of a row's life."""
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 90), (1, 2, 30), (1, 3, 80), (1, 4, 26), (1, 5, 49)))
        expected = [2, 4, 5, 1, 3]
        assert store.get("timed", (1,)).column("id").to_pylist() == expected
        for reverse in (False, True):
            pieces = list(store.iterate("timed", reverse=reverse))
            assert [i for each in pieces for i in each.rows.column("id").to_pylist()] == expected
