"""Streams with expiry, over every backend: rows are gone when they are due, and not before."""

import dataclasses
import random
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from faults import Faults, faults
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_streams import STREAMS
from store_contract import StateStoreTests

from lsmstate import backends
from lsmstate.errors import InvalidArgumentError, StoreClosedError
from lsmstate.expiry import Expiry
from lsmstate.options import KIB, MIB, Options
from lsmstate.store import Mutation, StreamSchema

KEY = pa.schema([("k", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
OPTIONS = Options(memory_bytes=8 * MIB, memtable_bytes=256 * KIB)
LIFE = 100
BACKENDS = ("lsm", "rocksdb", "memory")


def even(rows):
    """A rule of the user's: rows with an even id stay for good."""
    return pc.equal(pc.bit_wise_and(rows.column("id"), 1), 0)


def schemas(keep=None, after=LIFE):
    return (
        StreamSchema("plain", KEY, ROWS),
        StreamSchema("timed", KEY, ROWS, expiry=Expiry("at", after, keep=keep)),
    )


def opened(directory, backend="lsm", keep=None, after=LIFE, options=OPTIONS):
    streams = schemas(keep, after)
    return backends.open_store(str(directory), streams, backend=backend, options=options)


def batch(*rows):
    """(keys, rows) of (key, id, time) triples."""
    keys = pa.RecordBatch.from_pylist([{"k": k} for k, _, _ in rows], schema=KEY)
    values = [{"id": i, "at": at, "text": f"row {i}"} for _, i, at in rows]
    return pa.RecordBatch.from_pylist(values, schema=ROWS), keys


def keys_of(*keys):
    return pa.RecordBatch.from_pylist([{"k": k} for k in keys], schema=KEY)


def ids(rows):
    return sorted(rows.column("id").to_pylist())


def all_ids(store, stream="timed"):
    return sorted(i for rows in store.scan(stream) for i in ids(rows))


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


class TestContract(StateStoreTests):
    """The whole contract holds for a stream with expiry of which nothing is due."""

    backend = "lsm"
    # Its other process knows the streams without expiry only.
    test_a_commit_in_another_process = None
    # Retractions are refused where there is an expiry.
    test_retract_takes_the_oldest_equal_row = None
    test_one_write_may_retract_and_delete_ranges = None
    test_deleting_a_key_forgets_its_retractions = None
    test_rows_and_retractions_may_come_in_any_order = None

    def test_streams_come_in_their_order(self, store):
        assert list(store.streams) == ["customers", "returns"]
        assert store.streams["returns"].expiry == Expiry("id", 10**15)

    @staticmethod
    def expiring(streams):
        return [
            StreamSchema(s.name, s.key, s.rows, expiry=Expiry("id", 10**15))
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


def test_the_watermark_is_kept_with_the_state(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch((1, 1, 1000), (1, 2, 1010)))
        store.advance("timed", 1105)
        store.commit()
    with opened(tmp_path, backend) as store:
        assert all_ids(store) == [2]
        assert store.append("timed", *batch((1, 3, 1005))) == 0


def test_attempts_expire_too(tmp_path, backend):
    def attempt(pointer, number):
        return backends.open_attempt(
            str(tmp_path), schemas(even), backend=backend, pointer=pointer,
            batch_id=number, attempt_id="a", options=OPTIONS,
        )  # fmt: skip

    with attempt(None, 0) as store:
        store.append("timed", *batch(*((n % 7, n, n) for n in range(600))))
        first = store.commit()
    with attempt(first, 1) as store:
        store.advance("timed", 450)
        second = store.commit()
    for pointer, expected in (
        (first, list(range(600))),
        (second, sorted({*range(351, 600), *range(0, 600, 2)})),
    ):
        with attempt(pointer, 2) as store:
            assert all_ids(store) == expected


def test_a_rule_may_keep_rows_for_good(tmp_path, backend):
    with opened(tmp_path, backend, keep=even) as store:
        store.append("timed", *batch(*((n % 5, n, n) for n in range(300))))
        for watermark in (150, 260, 10**6, 10**7):
            store.advance("timed", watermark)
            due = max(0, watermark - LIFE)
            expected = [n for n in range(300) if n > due or n % 2 == 0]
            assert all_ids(store) == expected
        assert store.append("timed", *batch((1, 1000, 5), (1, 1001, 5))) == 1
        assert 1000 in ids(store.get("timed", (1,)))
        assert store.probe("timed", keys_of(*range(5))).counts.sum() == 151


def test_an_answer_of_the_rule_that_is_none_is_refused_before_anything_changes(tmp_path):
    with opened(tmp_path, keep=lambda rows: pa.nulls(rows.num_rows, pa.bool_())) as store:
        store.append("timed", *batch((1, 1, 10), (1, 2, 10**6)))
        store.advance("timed", 50)
        with pytest.raises(InvalidArgumentError, match="a boolean for each"):
            store.append("timed", *batch((1, 3, -(10**6))))
        assert all_ids(store) == [1, 2]


@pytest.mark.parametrize("due", [True, False], ids=["ring", "out of the ring"])
def test_a_rule_that_fails_in_the_middle_of_a_move(tmp_path, backend, due):
    """Whatever comes next, reading or deleting, finds each row once."""
    asked_until_it_fails = []

    def rule(rows):
        if asked_until_it_fails:
            asked_until_it_fails.pop()
            if not asked_until_it_fails:
                raise ArithmeticError("a bug of the user's")
        return even(rows)

    count = 4000  # rows of more than two pieces
    times = [1000 if due else 1000 + 10 * LIFE] * count
    if not due:
        times[count // 2 :: 2] = [1000 - 10 * LIFE] * (count // 4)  # asked about while they move
    rows = [(i, i, at) for i, at in enumerate(times)]
    big = [*batch(*rows)]
    big[0] = big[0].set_column(2, "text", pa.array([f"row {i} " * 25 for i in range(count)]))
    with opened(tmp_path, backend, keep=rule) as store:
        if not due:
            store.append("timed", *batch((10**6, 10**6, 1000)))  # the ring is around it
        store.append("timed", *big)
        asked_until_it_fails[:] = [True, True]
        with pytest.raises(ArithmeticError):
            store.advance("timed", 1000 + (2 * LIFE if due else LIFE // 2 + 1))
        kept = [i for i in range(count) if i % 2 == 0 or (not due and times[i] > 1000)]
        assert [i for i in all_ids(store) if i < count] == kept
        asked_until_it_fails[:] = []
        store.delete("timed", keys_of(*range(count // 2)))
        store.advance("timed", 1000 + 3 * LIFE)
        with store.snapshot() as snapshot:
            found = [i for i in all_ids(snapshot) if i < count]
        assert found == [i for i in kept if i >= count // 2]


def test_rows_of_almost_a_quarter_of_the_cap_are_stored_and_moved(tmp_path, backend):
    rows, keys = batch(*((i, i, 1000) for i in range(0, 2000, 2)))
    texts = ["x" * 100] * 1000
    texts[500] = "x" * (7 * MIB // 4)
    rows = rows.set_column(2, "text", pa.array(texts))
    options = dataclasses.replace(OPTIONS, memory_bytes=8 * MIB)
    with opened(tmp_path, backend, keep=even, options=options) as store:
        assert store.append("timed", rows, keys) == 1000
        store.advance("timed", 2000)
        assert all_ids(store) == list(range(0, 2000, 2))
        assert store.put("timed", rows.slice(500, 1), keys.slice(500, 1)) == 1


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


def test_a_snapshot_stays_as_it_was_while_rows_expire(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        store.append("timed", *batch(*((n % 3, n, n) for n in range(400))))
        store.advance("timed", 150)
        with store.snapshot() as view:
            store.advance("timed", 450)
            store.append("timed", *batch((1, 500, 500)))
            assert all_ids(view) == list(range(51, 400))
            assert view.probe("timed", keys_of(0, 1, 2)).counts.sum() == 349
        assert all_ids(store) == [*range(351, 400), 500]


def test_checkpoints_of_a_store_with_expiry(tmp_path):
    with opened(tmp_path) as store:
        store.append("timed", *batch((1, 1, 1), (1, 2, 10**6)))
        store.checkpoint("before")
        store.advance("timed", 5000)
        store.compact()
        assert [checkpoint.name for checkpoint in store.checkpoints] == ["before"]
        assert all_ids(store) == [2]
    with pytest.raises(InvalidArgumentError, match="an expiry; give the streams"):
        backends.open_checkpoint(str(tmp_path), "before", options=OPTIONS)
    plain = [dataclasses.replace(stream, expiry=None) for stream in schemas()]
    for streams, said in ((plain, "holds the streams"), (schemas(after=7), "after 100")):
        with pytest.raises(InvalidArgumentError, match=said):
            backends.open_checkpoint(str(tmp_path), "before", streams=streams, options=OPTIONS)
    with backends.open_checkpoint(
        str(tmp_path), "before", streams=schemas(), options=OPTIONS
    ) as reader:
        assert list(reader.streams) == ["plain", "timed"]
        assert all_ids(reader) == [1, 2]
        assert ids(reader.get("timed", (1,))) == [1, 2]
        for write in (
            lambda: reader.append("timed", *batch((1, 3, 3))),
            lambda: reader.retract("timed", *batch((1, 3, 3))),
            lambda: reader.delete_range("timed"),
            lambda: reader.advance("timed", 9000),
        ):
            with pytest.raises(StoreClosedError, match="is open for reading, at checkpoint"):
                write()
        assert all_ids(reader) == [1, 2]
    refused = pytest.raises(InvalidArgumentError, match="MemoryStore has no checkpoints")
    with opened(tmp_path / "other", "memory") as store, refused:
        store.compact()


def test_a_checkpoint_that_was_made_while_a_bucket_was_due(tmp_path):
    """What is due and kept by the rule is read as it was, though it was never moved."""
    with opened(tmp_path, keep=even) as store:
        store.append("timed", *batch(*[(1, n, n) for n in range(100)]))
        store.advance("timed", 112)
        store.checkpoint("partly-due")
        store.delete_range("timed")
    streams = schemas(even)
    with backends.open_checkpoint(
        str(tmp_path), "partly-due", streams=streams, options=OPTIONS
    ) as reader:
        assert all_ids(reader) == [*range(0, 13, 2), *range(13, 100)]


def test_another_expiry_than_before_is_refused(tmp_path):
    with opened(tmp_path) as store:
        store.append("timed", *batch((1, 1, 1)))
    for other, said in ((opened, r"'at' after 100 .* asked for: 'at' after 101"),):
        with pytest.raises(InvalidArgumentError, match=said):
            other(tmp_path, after=101)
    with opened(tmp_path) as store:
        assert all_ids(store) == [1]


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


def test_whole_files_go_unread(tmp_path):
    """The buckets that are due leave the disk by range deletions, without a merge of them."""
    text = "".join(random.Random(1).choices("abcdefghijklmnop", k=400))
    options = dataclasses.replace(OPTIONS, file_bytes=64 * KIB, background=False)
    with opened(tmp_path, after=4000, options=options) as store:
        for start in range(0, 16_000, 1000):
            rows = [
                {"id": n, "at": n, "text": text[n % 300 :] + str(n)}
                for n in range(start, start + 1000)
            ]
            keys = keys_of(*(n * 7919 % 1000 for n in range(start, start + 1000)))
            store.append("timed", pa.RecordBatch.from_pylist(rows, schema=ROWS), keys)
            store.advance("timed", start + 1000)
        store.commit()
        store.compact()
        before = store.stats()
        store.advance("timed", 10**6)
        store.commit()
        assert all_ids(store) == []
        after = store.stats()
        assert after.writes.merged_bytes == before.writes.merged_bytes
        assert after.disk_bytes < before.disk_bytes / 3


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
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", BACKENDS)
@given(operations=OPERATIONS, with_rule=st.booleans())
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_as_the_model_has_it(tmp_path_factory, name, operations, with_rule):
    directory = tmp_path_factory.mktemp("model")
    keep = even if with_rule else None
    alive, horizon, number = {}, None, 0
    store = opened(directory, name, keep)
    try:
        for what, given_ in operations:
            if what == "append":
                rows = []
                for key, at in given_:
                    rows.append((key, number, at))
                    due = horizon is not None and at is not None and at <= horizon
                    if not due or (with_rule and number % 2 == 0):
                        alive[number] = (key, at)
                    number += 1
                store.append("timed", *batch(*rows))
            elif what == "advance":
                horizon = max(given_ - LIFE, horizon if horizon is not None else given_ - LIFE)
                store.advance("timed", given_)
                alive = {
                    i: (key, at)
                    for i, (key, at) in alive.items()
                    if at is None or at > horizon or (with_rule and i % 2 == 0)
                }
            elif what == "delete":
                store.delete("timed", keys_of(*given_))
                alive = {i: row for i, row in alive.items() if row[0] not in given_}
            else:
                store.commit()
                store.close()
                store = opened(directory, name, keep)
            assert all_ids(store) == sorted(alive)
            counts = store.probe("timed", keys_of(*range(5))).counts.tolist()
            assert counts == [sum(key == k for key, _ in alive.values()) for k in range(5)]
    finally:
        store.close()


def test_retractions_are_refused_where_there_is_an_expiry(tmp_path, backend):
    with opened(tmp_path, backend) as store:
        rows, keys = batch((1, 1, 50), (1, 2, 50))
        for stream in ("plain", "timed"):
            store.append(stream, rows, keys)
        with pytest.raises(InvalidArgumentError, match="delete the key"):
            store.retract("timed", rows, keys)
        with pytest.raises(InvalidArgumentError, match="delete the key"):
            store.write(
                [Mutation("delete", "plain", keys), Mutation("retract", "timed", keys, rows)]
            )
        assert store.retract("plain", rows.slice(1), keys.slice(1)) == 1
        assert all_ids(store, "plain") == [1]
        assert all_ids(store) == [1, 2]


def test_a_rule_that_changes_its_mind_is_an_error(tmp_path):
    answers = [True]
    with opened(
        tmp_path, keep=lambda rows: pa.array([answers[0]] * rows.num_rows, pa.bool_())
    ) as store:
        store.append("timed", *batch((1, 1, 1000), (2, 2, 1001), (3, 3, 1060), (3, 4, 10**6)))
        store.advance("timed", 1101)
        probe = store.probe("timed", keys_of(1, 2))
        assert probe.counts.tolist() == [1, 1]
        answers[0] = False
        with pytest.raises(InvalidArgumentError, match="depend on the row alone"):
            list(probe.fetch(np.array([0, 1]), 1 << 20))
